"""The state of the transaction service, and the effect of each edit on it: no decisions, no time, no I/O.

::

    last           the last write pointer that was given
    read pointer   pointers above it are not visible yet
    in progress    transactions, each with its pointers (its id, then one for each checkpoint)
    invalid        pointers whose messages are never seen
    change sets    of committed transactions with which a transaction in progress may conflict

A pointer at or below the read pointer is visible if it is neither in progress nor invalid. Pointers are kept in
ascending arrays, since a new pointer is always the greatest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import POINTER_MAX, Snapshot
from broker.transactions.edits import (
    Aborted,
    Checkpointed,
    Committed,
    Committing,
    Edit,
    Invalidated,
    Named,
    Reset,
    Started,
    Truncated,
    TruncatedBefore,
)

KEY_OVERHEAD_BYTES: Final = 140
"""About how many bytes a key of a change set takes in memory beside its own, and the set beside its keys."""
NAMES_MAX: Final = 10_000
"""How many names the service remembers. It is a constant: each node must restore the same state from the journal."""
FORGOTTEN_AT_ONCE: Final = 10_000
"""An edit forgets no more change sets after so many keys: it must not block the event loop."""


class OpenTransaction:
    """A transaction in progress. ``changes`` is None until it has sent its change set.

    ``read_pointer``, ``seen`` and ``first_short`` are from the moment when it began: the read pointer, the pointers in
    progress, and the oldest short transaction among them.
    """

    __slots__ = (
        "changes",
        "checkpoints",
        "client",
        "expires_ms",
        "first_short",
        "id",
        "long",
        "name",
        "read_pointer",
        "seen",
        "started_ms",
    )

    def __init__(
        self, started: Started, read_pointer: int, seen: array[int], first_short: int
    ) -> None:
        """Begin the transaction of a Started edit."""
        self.id = started.pointer
        self.long = started.long
        self.started_ms = started.started_ms
        self.expires_ms = started.expires_ms
        self.client = started.client
        self.name = ""
        self.read_pointer = read_pointer
        self.seen = seen
        self.first_short = first_short
        self.checkpoints: tuple[int, ...] = ()
        self.changes: tuple[bytes, ...] | None = None

    @property
    def pointers(self) -> tuple[int, ...]:
        """All its write pointers, ascending."""
        return (self.id, *self.checkpoints)


class InvalidTransaction(NamedTuple):
    """An invalid transaction."""

    long: bool
    checkpoints: tuple[int, ...]


class NameOwner(NamedTuple):
    """The program that owns a name, by its ``epoch``, and its last transaction."""

    epoch: int
    transaction: int


class ServiceState:
    """The state after edit number ``number``."""

    def __init__(self) -> None:
        """Begin empty. The first edit must be a Reset."""
        self.number = 0
        self.last = 0
        self.read_pointer = 0
        self.in_progress: dict[int, OpenTransaction] = {}
        """The transactions by id, ascending."""
        self.pointers: array[int] = array("q")
        """The pointers of all transactions in progress."""
        self.shorts: array[int] = array("q")
        """The ids of the short transactions in progress."""
        self.invalids: array[int] = array("q")
        """The invalid pointers. The array never changes in place, since snapshots share it."""
        self.ended: dict[int, InvalidTransaction] = {}
        """The invalid transactions by id. Their pointers are in ``invalids``."""
        self.gone: dict[int, InvalidTransaction] | None = None
        """Those that were removed while a snapshot is being written, which needs them."""
        self.committed: deque[tuple[int, tuple[bytes, ...]]] = deque()
        """Commit pointers and change sets, in the order of the commits."""
        self.committed_at: dict[bytes, int] = {}
        """The last commit pointer of each key in ``committed``."""
        self.change_bytes = 0
        """The memory of all change sets."""
        self.names: dict[str, NameOwner] = {}
        """The owners of names, the least recently used name first."""

    # Queries.

    @property
    def first_short(self) -> int:
        """The id of the oldest short transaction in progress. The greatest pointer if there is none."""
        return self.shorts[0] if self.shorts else POINTER_MAX

    def snapshot(self, pointer: int = 0, *, long: bool = False) -> Snapshot:
        """Return the snapshot of a transaction that begins now with ``pointer``. 0 means no transaction."""
        return Snapshot(
            transaction_id=pointer,
            read_pointer=self.read_pointer,
            invalids=self.invalids,
            in_progress=self.pointers[:],
            first_short_in_progress=self.first_short,
            long=long,
        )

    def snapshot_without(self, ended: OpenTransaction, pointer: int, *, long: bool) -> Snapshot:
        """Return the snapshot of a transaction that begins with ``pointer`` right after another one became invalid."""
        gone = set(ended.pointers)
        invalids = self.invalids[:]
        for each in ended.pointers:
            insort(invalids, each)
        shorts = (each for each in self.shorts if each != ended.id)
        return Snapshot(
            transaction_id=pointer,
            read_pointer=self.read_pointer if ended.long else max(self.read_pointer, ended.id),
            invalids=invalids,
            in_progress=array("q", [each for each in self.pointers if each not in gone]),
            first_short_in_progress=next(shorts, POINTER_MAX),
            long=long,
        )

    def conflict(self, transaction: OpenTransaction, changes: Iterable[bytes]) -> bytes | None:
        """Return one of these keys that a transaction changed which committed after this one began; else None."""
        if not self.committed_at:
            return None
        for key in changes:
            if self.committed_at.get(key, 0) > transaction.id:
                return key
        return None

    def is_in_progress(self, pointer: int) -> bool:
        """Return whether a pointer belongs to a transaction in progress."""
        at = bisect_left(self.pointers, pointer)
        return at < len(self.pointers) and self.pointers[at] == pointer

    def is_invalid(self, pointer: int) -> bool:
        """Return whether a pointer is invalid."""
        at = bisect_left(self.invalids, pointer)
        return at < len(self.invalids) and self.invalids[at] == pointer

    # Edits.

    def apply(self, number: int, edit: Edit) -> None:
        """Apply an edit. Raises StorageCorrupt if its number is not the next one, or it does not fit the state."""
        if number != self.number + 1:
            raise StorageCorrupt(
                f"The journal has edit {number} behind edit {self.number}: an edit is missing."
            )
        try:
            _APPLY[type(edit)](self, edit)
        except KeyError as error:
            raise StorageCorrupt(
                f"Edit {number} of the journal does not fit the state: {edit!r:.200}"
            ) from error
        self._forget()
        self.number = number

    def reset(self, edit: Reset) -> None:
        """Forget everything. Only the number of the edit stays."""
        vars(self).update(vars(ServiceState()), number=self.number)
        self.last = self.read_pointer = edit.pointer

    def start(self, edit: Started) -> None:
        """Begin a transaction."""
        self.in_progress[edit.pointer] = OpenTransaction(
            edit, self.read_pointer, self.pointers[:], self.first_short
        )
        self.last = edit.pointer
        self.pointers.append(edit.pointer)
        if not edit.long:
            self.shorts.append(edit.pointer)

    def checkpoint(self, edit: Checkpointed) -> None:
        """Give a transaction another pointer."""
        found = self.in_progress[edit.transaction]
        found.checkpoints = (*found.checkpoints, edit.pointer)
        self.last = edit.pointer
        self.pointers.append(edit.pointer)

    def prepare(self, edit: Committing) -> None:
        """Store the change set of a transaction."""
        found = self.in_progress[edit.transaction]
        self.change_bytes += size_of(edit.changes) - size_of(found.changes or ())
        found.changes = edit.changes

    def commit(self, edit: Committed) -> None:
        """End a transaction: its writes become visible."""
        found = self._end(edit.transaction)
        if found.changes:
            # The next pointer. It is greater than all transactions that began before this commit.
            pointer = self.last + 1
            self.committed.append((pointer, found.changes))
            self.committed_at.update(dict.fromkeys(found.changes, pointer))
            self.change_bytes += size_of(found.changes)
        self._move(found.pointers[-1])

    def abort(self, edit: Aborted) -> None:
        """End a short transaction whose writes are undone. It may be invalid already."""
        ended = self.ended.get(edit.transaction)
        if ended is None:
            self._move(self._end(edit.transaction).pointers[-1])
            return
        pointers = (edit.transaction, *ended.checkpoints)
        self._remove_invalid(pointers)
        self._move(pointers[-1])

    def invalidate(self, edit: Invalidated) -> None:
        """End transactions: their writes are never seen."""
        self.invalids = self.invalids[:]
        for transaction in edit.transactions:
            found = self._end(transaction)
            self.ended[transaction] = InvalidTransaction(found.long, found.checkpoints)
            for pointer in found.pointers:
                insort(self.invalids, pointer)
            if not found.long or edit.timed_out:
                self._move(found.id)

    def truncate(self, edit: Truncated) -> None:
        """Remove pointers from the invalid ones."""
        self._remove_invalid(edit.pointers)

    def truncate_before(self, edit: TruncatedBefore) -> None:
        """Remove all pointers below one from the invalid ones."""
        self._remove_invalid(self.invalids[: bisect_left(self.invalids, edit.pointer)])

    def name(self, edit: Named) -> None:
        """Give a name to a transaction. The least recently used name without a transaction in progress is forgotten."""
        self.in_progress[edit.transaction].name = edit.name
        self.names.pop(edit.name, None)
        self.names[edit.name] = NameOwner(edit.epoch, edit.transaction)
        if len(self.names) > NAMES_MAX:
            unused = (
                name
                for name, owner in self.names.items()
                if owner.transaction not in self.in_progress
            )
            self.names.pop(next(unused, ""), None)

    def _end(self, transaction: int) -> OpenTransaction:
        found = self.in_progress.pop(transaction)
        for pointer in found.pointers:
            _take_out(self.pointers, pointer)
        if not found.long:
            _take_out(self.shorts, transaction)
        self.change_bytes -= size_of(found.changes or ())
        return found

    def _move(self, pointer: int) -> None:
        self.read_pointer = max(self.read_pointer, pointer)

    def _remove_invalid(self, pointers: Sequence[int]) -> None:
        """Remove pointers (ascending) from the invalid ones. Ignore pointers that are not invalid."""
        before, kept, at = self.invalids, array("q"), 0
        for pointer in pointers:
            ended = self.ended.pop(pointer, None)
            if ended is not None and self.gone is not None:
                self.gone[pointer] = ended
            stop = bisect_left(before, pointer, at)
            kept.extend(before[at:stop])
            at = stop + (stop < len(before) and before[stop] == pointer)
        kept.extend(before[at:])
        self.invalids = kept

    def _forget(self) -> None:
        """Forget change sets with which no short transaction in progress can conflict.

        One call forgets a bounded number of keys. Later edits forget the rest.
        """
        first, keys = self.first_short, 0
        while self.committed and self.committed[0][0] < first and keys < FORGOTTEN_AT_ONCE:
            pointer, changes = self.committed.popleft()
            keys += len(changes)
            self.change_bytes -= size_of(changes)
            for key in changes:
                if self.committed_at.get(key) == pointer:
                    del self.committed_at[key]


def size_of(changes: Iterable[bytes]) -> int:
    """Return about how many bytes a change set takes in memory."""
    sizes = [len(key) + KEY_OVERHEAD_BYTES for key in changes]
    return sum(sizes) + KEY_OVERHEAD_BYTES if sizes else 0


def emptied(state: ServiceState) -> Iterator[None]:
    """Free a state that is not used any more. Each step frees little: all at once would block the event loop."""
    while state.committed:
        state.committed.popleft()
        yield
    for found in (state.committed_at, state.ended, state.in_progress, state.names):
        while found:
            found.popitem()
            yield


def _take_out(pointers: array[int], pointer: int) -> None:
    at = bisect_left(pointers, pointer)
    assert pointers[at] == pointer, "a pointer in progress is in the array"
    del pointers[at]


_APPLY: Final[dict[type[Edit], Callable[[ServiceState, Any], None]]] = {
    Reset: ServiceState.reset,
    Started: ServiceState.start,
    Checkpointed: ServiceState.checkpoint,
    Committing: ServiceState.prepare,
    Committed: ServiceState.commit,
    Aborted: ServiceState.abort,
    Invalidated: ServiceState.invalidate,
    Truncated: ServiceState.truncate,
    TruncatedBefore: ServiceState.truncate_before,
    Named: ServiceState.name,
}
