"""Restore the state from the messages of a journal: a fold, without I/O.

If the floor was never raised, the journal begins with edit 1. Otherwise the state comes from the first whole snapshot,
and then from all edits behind the begin of that snapshot::

    edit edit begin edit part part edit end edit …
              └── the snapshot's state ──┘
      not needed    ▲ applied      ▲        ▲

A repaired store may lack messages of the journal. Edits have numbers, so a missing one shows; and a repair leaves a gap, which
is not always in the right place. So the state is known again behind a whole snapshot or a reset. It is in doubt behind a gap,
until the next edit shows that none is missing there.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.errors import StorageCorrupt
from broker.storage.entry import Entry
from broker.transactions import snapshots
from broker.transactions.edits import FORMAT, Checkpointed, Edit, Reset, Started, decode_edit
from broker.transactions.service_state import ServiceState
from broker.wire.varint import Malformed, read_long


class _Pending:
    """A snapshot that is being read. ``before`` is the number of edits before it, and their bytes."""

    def __init__(self, number: int, before: tuple[int, int]) -> None:
        self.number = number
        self.before = before
        self.state = ServiceState()
        self.parts = 0
        self.bytes = 0
        self.edits: list[tuple[int, Edit]] = []


class Replay:
    """Restores the state. Give it the messages of a journal in their order."""

    def __init__(self) -> None:
        """Begin without messages."""
        self.messages = 0
        self.edits = 0
        """The number of edits since the begin of the last whole snapshot."""
        self.bytes = 0
        """Their bytes."""
        self.snapshot_bytes = 0
        """The size of the last whole snapshot."""
        self._state: ServiceState | None = None
        self._pending: _Pending | None = None
        self._in_doubt = False
        self._last = self._number = 0
        """The greatest pointer that was read, and the greatest number of an edit."""

    @property
    def is_determined(self) -> bool:
        """Whether the messages determine the state."""
        return not self.messages or (self._state is not None and not self._in_doubt)

    @property
    def state(self) -> ServiceState:
        """The state after all messages. Raises StorageCorrupt if the messages do not determine it."""
        if not self.is_determined:
            raise StorageCorrupt(
                "The journal of transactions lacks a part, so it does not tell which transactions are open or invalid. "
                "Restore a backup; or begin anew with broker tx reset, which shows the messages of all of them."
            )
        return self._state or ServiceState()

    def anew(self) -> ServiceState:
        """Return a state without transactions. Its pointers and edits go on above those that were read."""
        state = ServiceState()
        state.last, state.number = self._last, self._number
        return state

    def messages_in(self, entry: Entry) -> Iterator[bytes]:
        """Yield the messages in an entry of the journal. A gap has none, and leaves the state in doubt."""
        if entry.is_stub:  # Only a repair leaves one: messages of the journal have no lifetime.
            self.messages += 1
            self._in_doubt = True
            return
        for place in range(entry.count):
            yield entry.payload(place)

    def take(self, message: bytes) -> None:
        """Take the next message. Raises StorageCorrupt."""
        self.messages += 1
        if len(message) < 3 or message[0] != FORMAT:
            raise StorageCorrupt("The journal of transactions has a message of an unknown format.")
        kind = message[1]
        if kind == snapshots.BEGIN:
            self._begin(message)
        elif kind == snapshots.PART:
            self._part(message)
        elif kind == snapshots.END:
            self._end(message)
        else:
            self._edit(*decode_edit(message), len(message))

    def _part(self, message: bytes) -> None:
        pending = self._pending
        if pending is None:
            return
        pending.bytes += len(message)
        if self._state is None:
            snapshots.take_part(pending.state, message)
            self._last = max(self._last, pending.state.last)
            pending.parts += 1

    def _edit(self, number: int, edit: Edit, size: int) -> None:
        if isinstance(edit, Started | Checkpointed | Reset):
            self._last = max(self._last, edit.pointer)
        self._number = max(self._number, number)
        if self._state is not None and number > self._state.number + 1:
            self._state = None
        if self._state is None and (number == 1 or isinstance(edit, Reset)):
            self._state = ServiceState()
            self._state.number = number - 1
        if self._state is not None:
            self._state.apply(number, edit)
            self._in_doubt = False
        elif self._pending is not None:
            self._pending.edits.append((number, edit))
        self.edits += 1
        self.bytes += size

    def _begin(self, message: bytes) -> None:
        try:
            number, _ = read_long(message, 2)
        except (Malformed, IndexError) as error:
            raise StorageCorrupt("The begin of a snapshot does not decode.") from error
        self._number = max(self._number, number)
        if self._state is not None and number > self._state.number:
            self._state = None
        if self._state is None or number == self._state.number:
            self._in_doubt = False
        self._pending = _Pending(number, (self.edits, self.bytes))

    def _end(self, message: bytes) -> None:
        number, parts = snapshots.read_end(message)
        pending, self._pending = self._pending, None
        if pending is None or pending.number != number:
            return
        if self._state is None:
            self._state = _restored(pending) if pending.parts == parts else None
        self.edits -= pending.before[0]
        self.bytes -= pending.before[1]
        self.snapshot_bytes = pending.bytes


def _restored(pending: _Pending) -> ServiceState | None:
    """Return the state of a whole snapshot, after the edits behind its begin; None: one is missing. Raises StorageCorrupt."""
    state = snapshots.complete(pending.state, pending.number)
    for number, edit in pending.edits:
        if number > state.number + 1:
            return None
        state.apply(number, edit)
    return state
