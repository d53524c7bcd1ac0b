"""One write of a LevelDB store: what the changes of many callers put into it.

A change sees the control rows as the changes before it in the round leave them; each is written once, at
the end. Nothing is believed before the write is done: then the holds are told, all at once.
"""

from __future__ import annotations

import secrets
from typing import Protocol

from broker.storage.control import TOKEN_BYTES, Control
from broker.storage.controlvalue import decode, encode
from broker.storage.leveldb_holds import HeldLog, Holds
from broker.storage.rowvalue import decode_checked, encode_checked


class Batch(Protocol):
    """What the writer needs of a write batch."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Add a key."""

    def delete(self, key: bytes, /) -> None:
        """Remove a key."""

    def write(self) -> None:
        """Write it all, atomically."""

    def approximate_size(self) -> int:
        """Return the bytes so far."""


class Database(Protocol):
    """What the writer needs of the database."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""

    def batch(self, *, synced: bool) -> Batch:
        """Return an empty write batch."""

    def reopen(self) -> None:
        """Probe the disk, close and open anew. Raises OSError or BrokerError if it can't."""


class Round:
    """What one write is going to do."""

    def __init__(self, database: Database, holds: Holds, *, synced: bool) -> None:
        """Start empty."""
        self.holds = holds
        self.batch = database.batch(synced=synced)
        self.put = self.batch.put
        self.delete = self.batch.delete
        self.get = database.get
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._controls: dict[bytes, Control] = {}
        self._confirmed: dict[HeldLog, Control] = {}
        self._versions: dict[bytes, bytes] = {}

    def of(self, hold: HeldLog) -> Control:
        """Return the control row under a hold as this round leaves it. Raises Fenced."""
        self.holds.check(hold)
        return self._controls.get(hold.key) or hold.control

    def stored(self, key: bytes) -> Control | None:
        """Return a control row as this round leaves it, whoever holds the log."""
        pending = self._controls.get(key)
        if pending is not None:
            return pending
        known, control = self.holds.last_confirmed(key)
        if known:
            return control
        value = self.get(key)
        return None if value is None else decode(value)

    def change(self, hold: HeldLog, control: Control) -> None:
        """Let ``control`` be the log's control row after this round."""
        self._controls[hold.key] = control
        self._confirmed[hold] = control

    def change_unheld(self, key: bytes, control: Control) -> None:
        """Let ``control`` be a control row that nobody holds after this round."""
        self._controls[key] = control

    def record_version(self, key: bytes) -> bytes | None:
        """Return a record's version as this round leaves it; ``key`` is the one in the database."""
        version = self._versions.get(key)
        if version is None:
            value = self.get(key)
            version = None if value is None else version_bytes(decode_checked(value)[0])
        return version

    def put_record(self, key: bytes, number: int, value: bytes) -> bytes:
        """Put a record in its version ``number``, which is returned as callers see it."""
        self._versions[key] = version_bytes(number)
        self.put(key, encode_checked(number, value))
        return self._versions[key]

    def close(self) -> bool:
        """Add the control rows; return whether there is anything to write."""
        for key, control in self._controls.items():
            self.put(key, encode(control))
        return bool(self._controls) or self.batch.approximate_size() > _EMPTY_BATCH_BYTES

    def confirm(self) -> None:
        """Tell the holds what they may rely on from now on."""
        for hold, control in self._confirmed.items():
            hold.confirm(control)


def version_bytes(number: int) -> bytes:
    """Return a record's version as callers see it."""
    return number.to_bytes(8, "big")


_EMPTY_BATCH_BYTES = 12
"""LevelDB's batch header: sequence number and count."""
