"""The lines of a file, each counted before it is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO


def bounded_lines(file: IO[bytes], most: int) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends. Raises ValueError: a line has more than ``most`` bytes."""
    number = 0
    while line := file.readline(most + 2):
        number += 1
        if len(line.removesuffix(b"\n")) > most:
            raise ValueError(f"line {number:,}: it has more than {most:,} bytes")
        yield line
