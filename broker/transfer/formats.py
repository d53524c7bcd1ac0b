"""The file formats of export and import, chosen by the ending of the file's name.

An export writes a *part*, chunk by chunk. ``append`` makes a chunk durable and returns the position after it. The
caller stores this position. If the process is killed, data after the stored position is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from broker.model import Message
from broker.transfer.avro_file import AvroFile
from broker.transfer.jsonlines import JsonLines
from broker.transfer.parquet_file import ParquetFile


class Format(Protocol):
    """A file format."""

    name: str

    def check(self) -> None:
        """Raise TaskFailed if a package that it needs is missing."""

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write messages at a position, synced, and return the position after them."""

    def finish(self, part: Path, position: int, file: Path) -> None:
        """Turn a part whose end is at ``position`` into the finished file."""

    def discard(self, part: Path) -> None:
        """Remove a part, if it still exists."""

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file, in bounded memory. Raises TaskFailed with the place in the file."""


FORMATS: Final[dict[str, Format]] = {
    "jsonl": JsonLines(),
    "avro": AvroFile(),
    "parquet": ParquetFile(),
}
_ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".avro": "avro", ".parquet": "parquet"}


def format_of(file: Path, name: str | None) -> Format:
    """Return the format ``name``; without a name, the format of the file's ending.

    Raises:
        ValueError: no format has that ending.
        TaskFailed: a package is missing.
    """
    name = name or _ENDINGS.get(file.suffix.lower())
    if name is None:
        raise ValueError(f"{file.name!r} ends with none of {', '.join(_ENDINGS)}: give --format.")
    found = FORMATS[name]
    found.check()
    return found
