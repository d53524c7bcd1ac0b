"""Small files of JSON: cursors, contexts, the state of an export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 1 << 20


def read(file: Path) -> object:
    """Return the JSON value in a file, which is counted before it is held.

    Raises:
        ValueError: it is too large, too deep, or not JSON in UTF-8.
        OSError: it can't be read.
    """
    with file.open("rb") as opened:
        text = opened.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX:,} bytes")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Name a file of this machine in the errors of its writing. Of a full disk the system names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(file)
        raise
