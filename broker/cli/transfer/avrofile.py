"""Avro container files, with fastavro. Each chunk is a block, so an unfinished file can be continued."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.transfer.avro_container import CheckedFile
from broker.cli.transfer.growing_file import GrowingFile, check_reaches
from broker.cli.transfer.message_records import message_of
from broker.model import Message

SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Message",
    "namespace": "broker",
    "fields": [
        {"name": "id", "type": "bytes"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "payload", "type": "bytes"},
        {"name": "key", "type": ["null", "bytes"], "default": None},
        {"name": "headers", "type": {"type": "map", "values": "bytes"}, "default": {}},
    ],
}


class AvroFile(GrowingFile):
    """The format ``avro``."""

    name = "avro"

    def check(self) -> None:
        """Check that fastavro is installed. Raises click.ClickException."""
        _fastavro()

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write a block at a position, which is a size in bytes; at position 0 write the header first."""
        fastavro = _fastavro()
        check_reaches(part, position)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(position)
            # With a schema fastavro writes a header; without one it appends with the header of the file.
            file.seek(0, io.SEEK_END)
            fastavro.writer(file, SCHEMA if not position else None, map(_record, messages))
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file; it needs the field ``payload``, and may have ``key`` and ``headers``."""
        fastavro = _fastavro()
        done = 0
        with file.open("rb") as opened:
            try:
                for record in fastavro.reader(CheckedFile(opened)):
                    yield message_of(record)
                    done += 1
            except OSError:
                raise
            except Exception as error:  # fastavro raises anything for values of others.
                reason = str(error) or type(error).__name__
                raise click.ClickException(f"{file}, after record {done:,}: {reason}") from error


def _record(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "time": message.timestamp_ms,
        "payload": message.payload,
        "key": message.key,
        "headers": dict(message.headers),
    }


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - An extra.
    except ImportError as error:
        raise click.ClickException(
            "Avro files need fastavro: pip install 'tms-broker[export]', or fastavro alone."
        ) from error
    return fastavro
