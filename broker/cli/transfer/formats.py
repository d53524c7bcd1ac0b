"""The kinds of file that messages are exported to and imported from, by the ending of the file's name.

A file is written as a *part*, chunk by chunk. ``append`` makes a chunk durable and returns the position behind it,
which the caller notes; whatever lies behind the noted position, because a process was killed, is written anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import click

from broker.cli.transfer.avrofile import AvroFile
from broker.cli.transfer.jsonlines import JsonLines
from broker.cli.transfer.parquetfile import ParquetFile
from broker.model import Message


class Format(Protocol):
    """A kind of file."""

    name: str

    def check(self) -> None:
        """Raise click.ClickException if a package that it needs is missing."""

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write messages behind a position, synced, and return the position behind them."""

    def finish(self, part: Path, position: int, file: Path) -> None:
        """Make the finished file of a part whose end is at ``position``."""

    def discard(self, part: Path) -> None:
        """Remove what is left of a part, if there is anything."""

    def read(self, file: Path) -> Iterator[Message]:
        """Give the messages of a file, in bounded memory. Raises click.ClickException, which names the place."""


FORMATS: Final[dict[str, Format]] = {
    "jsonl": JsonLines(),
    "avro": AvroFile(),
    "parquet": ParquetFile(),
}
_ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".avro": "avro", ".parquet": "parquet"}


def format_of(file: Path, name: str | None) -> Format:
    """Return the format that is named, else the one of the file's ending.

    Raises:
        click.UsageError: no format has that ending.
        click.ClickException: a package is missing.
    """
    name = name or _ENDINGS.get(file.suffix.lower())
    if name is None:
        raise click.UsageError(
            f"{file.name!r} ends with none of {', '.join(_ENDINGS)}: name the --format."
        )
    found = FORMATS[name]
    found.check()
    return found
