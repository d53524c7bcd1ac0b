"""The control row: who writes a log, in which epoch, and the last id that counts.

A log is its rows *as its control row tells them*. Everything that decides whether a write counts is
here, as pure functions from one control row to the next; the stores only apply them with a
compare-and-set. An epoch is one hold on the log. The ranges say which epoch owns which ids::

    ranges   (first, last, after)   (first, last, after)   …      pointer
             owns ids in (after, next after]                      ids above it do not exist

A row counts only if its own epoch lies in ``first..last`` of the entry that owns its id. Rows that a
writer left above the pointer when it was fenced are therefore never seen: the next entry begins at
that pointer, and only its epochs own what follows.

Changes, each a compare-and-set from exactly the value that the writer last wrote, with a fresh token::

    claimed      epoch + 1, a new owner        fences every earlier holder
    committed    the pointer moves             an append
    edited       edits + 1                     a rollback, an inversion
    floor_raised the floor moves up            retention
    sealed       a payload log takes no more   published, dropped: what becomes of it
    released     epoch + 1, no owner           a handoff in good order: the last entry may be extended
    tombstoned   epoch + 1, deleted            the topic's deletion; the row itself is for ever
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from broker import guards
from broker.model import ROW_ID_MIN, RowId

NO_OWNER = ""
TOKEN_BYTES = 16
HOLD_NONCE_BYTES = 8
"""A token begins with its hold's own random bytes; a count of the hold's writes follows."""
RANGES_MAX = 64
"""Entries that a control row holds itself; the oldest over that move to a side row."""


class State(enum.IntEnum):
    """What may still be done to a log."""

    OPEN = 0
    SEALED = 1
    """A payload log that takes no more rows; its reference is being published."""
    PUBLISHED = 2
    """A payload log whose reference is committed."""
    DROPPED = 3
    """A payload log whose rows are going."""
    DELETED = 4
    """A message log whose topic was deleted: the tombstone that outlives it."""


class EpochRange(NamedTuple):
    """Epochs ``first..last`` own the ids above ``after``, up to the next entry's ``after``."""

    first: int
    last: int
    after: RowId


class Control(NamedTuple):
    """A control row.

    Invariants: ranges rise in epochs and never fall in ``after``; the last entry's last epoch is
    ``epoch``, or one handoff, seal or tombstone below it; no ``after`` is above the pointer.
    """

    epoch: int
    owner: str
    generation: int
    pointer: RowId = ROW_ID_MIN
    ranges: tuple[EpochRange, ...] = ()
    floor: RowId = ROW_ID_MIN
    edits: int = 0
    state: State = State.OPEN
    sealed_at: RowId = ROW_ID_MIN
    published: RowId = ROW_ID_MIN
    older: tuple[bytes, ...] = ()
    """Tokens that name the side rows with older entries, the oldest first."""
    token: bytes = bytes(TOKEN_BYTES)

    def check(self) -> None:
        """Assert the invariants: a broken one is a bug, never an input."""
        before: EpochRange | None = None
        for entry in self.ranges:
            assert entry.first <= entry.last
            assert entry.after <= self.pointer
            if before is not None:
                assert before.last < entry.first
                assert before.after <= entry.after
            before = entry

    def has_committed(self) -> bool:
        """Whether this generation's first commit has happened."""
        first = self.ranges[0].after if self.ranges else ROW_ID_MIN
        return bool(self.older) or self.pointer > first

    def counts(self, row: RowId, epoch: int) -> bool:
        """Whether a row with its own epoch ``epoch`` is part of the log (floor apart)."""
        if row > self.pointer and guards.holds("commit-pointer"):
            return False
        if not guards.holds("epoch-tag"):
            return True
        return owns(self.ranges, row, epoch)


def owns(ranges: tuple[EpochRange, ...], row: RowId, epoch: int) -> bool:
    """Whether ``epoch`` lies in the entry that owns the id ``row``."""
    for entry in reversed(ranges):
        if row > entry.after:
            return entry.first <= epoch <= entry.last
    return False


class StaleGeneration(Exception):
    """The control row is of another generation than the caller believes: read the record again."""


class Deleted(Exception):
    """The control row is a tombstone of the caller's generation."""


def claimed(current: Control | None, *, owner: str, generation: int, token: bytes) -> Control:
    """Return the control row of a claim over ``current``.

    Raises:
        StaleGeneration: ``generation`` is lower than the row's.
        Deleted: the row is a tombstone of this generation: finish the delete.
    """
    if current is None:
        first = EpochRange(1, 1, ROW_ID_MIN)
        return Control(1, owner, generation, ranges=(first,), token=token)
    if generation < current.generation:
        raise StaleGeneration(f"control row has generation {current.generation}")
    epoch = current.epoch + 1
    if generation > current.generation:
        return current._replace(
            epoch=epoch,
            owner=owner,
            generation=generation,
            ranges=(EpochRange(epoch, epoch, current.pointer),),
            older=(),
            floor=current.pointer,
            state=State.OPEN,
            token=token,
        )
    if current.state is State.DELETED and guards.holds("tombstone"):
        raise Deleted
    ranges = _extended(current, epoch)
    return current._replace(epoch=epoch, owner=owner, ranges=ranges, state=State.OPEN, token=token)


def _extended(current: Control, epoch: int) -> tuple[EpochRange, ...]:
    last = current.ranges[-1]
    if current.owner == NO_OWNER:
        return (*current.ranges[:-1], last._replace(last=epoch))
    return _with_entry(current, epoch)


def _with_entry(current: Control, epoch: int) -> tuple[EpochRange, ...]:
    entry = EpochRange(epoch, epoch, current.pointer)
    if current.ranges and current.ranges[-1].after == current.pointer:
        return (*current.ranges[:-1], entry)
    return (*current.ranges, entry)


def adopted(current: Control | None, *, epoch: int, owner: str, generation: int) -> Control:
    """Return a payload log's control row under its topic leader's epoch, before any commit.

    A payload log has no claim of its own: the first compare-and-set under an epoch also sets it.
    The caller has checked that ``current`` is not of a higher epoch.
    """
    if current is None:
        return Control(epoch, owner, generation, ranges=(EpochRange(epoch, epoch, ROW_ID_MIN),))
    if current.epoch == epoch:
        return current
    return current._replace(epoch=epoch, owner=owner, ranges=_with_entry(current, epoch))


def committed(current: Control, last: RowId, token: bytes) -> Control:
    """Return ``current`` with the pointer at ``last``, which must not be below it."""
    assert last >= current.pointer or not guards.holds("ids-rise"), "the pointer never goes back"
    return current._replace(pointer=max(last, current.pointer), token=token)


def edited(current: Control, token: bytes) -> Control:
    """Return ``current`` after a rollback: what was read before may have changed its marks."""
    counted = 1 if guards.holds("edits") else 0
    return current._replace(edits=current.edits + counted, token=token)


def floor_raised(current: Control, floor: RowId, token: bytes) -> Control:
    """Return ``current`` with the floor at ``floor`` or where it is, whichever is higher.

    Never above the pointer: the row at the pointer stays, as a scan must meet it.
    """
    return current._replace(floor=max(min(floor, current.pointer), current.floor), token=token)


def sealed(current: Control, at: RowId, token: bytes) -> Control:
    """Return a payload log's row sealed; ``at`` is the topic's last confirmed pointer."""
    return current._replace(state=State.SEALED, sealed_at=at, token=token)


def published(current: Control, reference: RowId, token: bytes) -> Control:
    """Return a payload log's row with the row id of the reference that shows it."""
    return current._replace(state=State.PUBLISHED, published=reference, token=token)


def dropped(current: Control, token: bytes) -> Control:
    """Return a payload log's row whose rows may go."""
    return current._replace(state=State.DROPPED, token=token)


def released(current: Control, token: bytes) -> Control:
    """Return the row of a handoff: allowed only if every row ever sent is confirmed and counts."""
    epoch = current.epoch + 1
    ranges = (*current.ranges[:-1], current.ranges[-1]._replace(last=epoch))
    return current._replace(epoch=epoch, owner=NO_OWNER, ranges=ranges, token=token)


def tombstoned(current: Control | None, *, owner: str, generation: int, token: bytes) -> Control:
    """Return the tombstone of a topic's generation; it is a claim too, so it fences."""
    if current is None or generation > current.generation:
        base = claimed(current, owner=owner, generation=generation, token=token)
        return base._replace(state=State.DELETED)
    if generation < current.generation:
        raise StaleGeneration(f"control row has generation {current.generation}")
    epoch = current.epoch + 1
    return current._replace(
        epoch=epoch,
        owner=owner,
        ranges=_with_entry(current, epoch),
        state=State.DELETED,
        token=token,
    )


def pruned(current: Control, keep_after: RowId) -> Control:
    """Return ``current`` without entries that nothing can ask about any more.

    An entry goes when the next entry's ``after`` is below the floor and below ``keep_after``, the
    start of the idempotency window. The newest entry always stays.
    """
    horizon = min(current.floor, keep_after)
    ranges = current.ranges
    while len(ranges) > 1 and ranges[1].after < horizon:
        ranges = ranges[1:]
    # All that the older entries own lies at or below the first entry's ``after``.
    older = () if ranges and ranges[0].after < horizon else current.older
    return current._replace(ranges=ranges, older=older)


def overflowing(current: Control) -> tuple[EpochRange, ...]:
    """Return the oldest entries that must move to a side row before the next entry is added."""
    surplus = len(current.ranges) - RANGES_MAX
    return current.ranges[: RANGES_MAX // 2 + surplus] if surplus >= 0 else ()


def spilled(current: Control, token: bytes) -> Control:
    """Return ``current`` with its overflowing entries in the side row that ``token`` names."""
    moved = overflowing(current)
    if not moved:
        return current
    return current._replace(ranges=current.ranges[len(moved) :], older=(*current.older, token))


def confirmed(current: Control, token: bytes) -> Control:
    """Return ``current`` unchanged but for the token: writing it proves that its writer leads."""
    return current._replace(token=token)


class Resolution(enum.Enum):
    """What a control row, read after a False or an error, says of a compare-and-set."""

    APPLIED = "applied"
    NOT_YET = "not yet"
    BEHIND = "behind"
    """It is of an earlier time, or a lower epoch moved it in between: mine was not applied then."""
    STOPPED = "stopped"
    """The same epoch with a token that is not mine: another of my name; stop leading."""
    FENCED = "fenced"


def resolve(written: Control, previous_token: bytes | None, seen: Control | None) -> Resolution:
    """Judge a compare-and-set that went from ``previous_token`` (None: no row) to ``written``.

    What was read may be old, but it was there once: seeing my token or a higher epoch is proof, not
    seeing my token is none.
    """
    if seen is None:
        return Resolution.NOT_YET if previous_token is None else Resolution.BEHIND
    if seen.token == written.token:
        return Resolution.APPLIED
    if seen.token == previous_token:
        return Resolution.NOT_YET
    if seen.epoch > written.epoch:
        return Resolution.FENCED
    if seen.epoch < written.epoch or is_of_same_hold(seen.token, written.token):
        return Resolution.BEHIND
    return Resolution.STOPPED


def is_older(seen: Control, known: Control) -> bool:
    """Whether ``seen`` certainly came before ``known``."""
    if seen.epoch != known.epoch:
        return seen.epoch < known.epoch
    return is_of_same_hold(seen.token, known.token) and seen.token < known.token


def token_of(hold_nonce: bytes, count: int) -> bytes:
    """Return the token of a hold's ``count``-th write: which hold wrote, and in which order."""
    return hold_nonce + count.to_bytes(TOKEN_BYTES - HOLD_NONCE_BYTES, "big")


def is_of_same_hold(token: bytes, other: bytes) -> bool:
    """Whether two tokens come from one hold."""
    return token[:HOLD_NONCE_BYTES] == other[:HOLD_NONCE_BYTES]


def batch_committed(
    seen: Control, ranges: tuple[EpochRange, ...], *, epoch: int, generation: int, last: RowId
) -> bool | None:
    """Whether a batch of a fenced epoch counts: True, False, or None for nobody can say.

    ``ranges`` are those of ``seen`` with the entries of its side rows in front. The batch is committed
    exactly if its last id is not above the ``after`` of the first entry with a first epoch above its
    own. If that entry may have been dropped since, only an id above what is left can be judged.
    """
    if seen.generation != generation:
        return None
    later = [entry for entry in ranges if entry.first > epoch]
    if not later:
        return last <= seen.pointer
    if last > later[0].after:
        return False
    return True if ranges[0].first <= epoch else None
