"""The ports to storage: logs, and records with a compare-and-set.

A **log** has one writer, who holds it: ``claim`` gives a Hold, every change goes through it, one
compare-and-set of the control row at a time, and a Hold that was fenced is of no more use. Reading
needs no hold. Every call has a deadline of its own and ends in one of four ways beside success:

========================  ======================================================================
Fenced                    another epoch holds the log; what was asked for certainly did not happen
OutcomeUnknown            it may have happened, or may happen yet
Unavailable, StorageFull  it did not happen (StorageFull says itself if that is unknown)
StorageCorrupt            what is stored does not make sense
========================  ======================================================================

After OutcomeUnknown on a hold, and after StorageFull with an unknown outcome, the hold is *done*: claim
the log again before the next write (``Hold.done``). A payload log's epoch is its topic leader's: it is
opened under the topic's hold, and giving up on it means claiming the *topic* again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, overload

from typing_extensions import override

from broker.model import ROW_ID_MIN, RowId, TopicId
from broker.storage.control import Control
from broker.storage.keys import LogId


class Segment(NamedTuple):
    """Rows of one request: they share all but id and payload.

    ``payloads`` None makes each row a reference (in fact there is one). ``pointer`` is the visibility
    pointer (``t``), ``number`` the payload log that a reference shows where it is not ``|pointer|``
    (``r``), ``lifetime_ms`` the life from publication where it is shorter than the topic's (``x``).
    """

    ids: Sequence[RowId]
    payloads: Sequence[bytes] | None
    pointer: int | None = None
    number: int | None = None
    lifetime_ms: int | None = None


class SideRow(NamedTuple):
    """A row of generation 0 that goes with a batch. It counts if the id ``row`` counts."""

    kind: bytes
    key: bytes
    row: RowId
    value: bytes


class Batch(NamedTuple):
    """What one append writes: all of it counts, or nothing. ``last`` is the new pointer."""

    segments: Sequence[Segment]
    last: RowId
    side: Sequence[SideRow] = ()


class Row(NamedTuple):
    """A row that counts. ``payload`` None is a reference; ``pointer`` < 0 is rolled back."""

    id: RowId
    payload: bytes | None
    pointer: int | None = None
    number: int | None = None
    lifetime_ms: int | None = None

    @property
    def payload_log(self) -> int | None:
        """The number of the payload log that a reference shows; None for an inline row."""
        if self.payload is not None:
            return None
        return self.number if self.number is not None else abs(self.pointer or 0)


class PlainRows(Sequence[Row]):
    """Inline rows without pointer and lifetime, as two parallel lists: cheap to make and to send on.

    Equal to any sequence of the same rows.
    """

    __slots__ = ("ids", "payloads")

    def __init__(self, ids: Sequence[RowId], payloads: Sequence[bytes]) -> None:
        """Keep both lists."""
        self.ids = ids
        self.payloads = payloads

    @override
    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> PlainRows: ...
    @override
    def __getitem__(self, place: int | slice) -> Row | PlainRows:
        """Return one row, or some."""
        if isinstance(place, slice):
            return PlainRows(self.ids[place], self.payloads[place])
        return Row(self.ids[place], self.payloads[place])

    @override
    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        return map(Row, self.ids, self.payloads)

    @override
    def __eq__(self, other: object) -> bool:
        """Compare row by row."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # As a list's.


class Rows(NamedTuple):
    """A page of a log.

    ``control`` is the control row by which the rows were judged, read before them. ``more`` says
    whether ids between ``seen`` and the asked-for end may hold more; ``seen`` is the last id that was
    looked at (the least, when reading backwards), from which the next page goes on.
    """

    rows: Sequence[Row]
    control: Control | None
    more: bool
    seen: RowId


class Estimate(NamedTuple):
    """How much a log holds, roughly."""

    rows: int
    bytes: int


class Swept(NamedTuple):
    """What one slice of sweeping removed."""

    rows: int
    more: bool


class Hold(Protocol):
    """A leader's hold on one log. ``control`` is the value last *confirmed*."""

    @property
    def log(self) -> LogId:
        """The log that is held."""

    @property
    def control(self) -> Control:
        """The control row as last confirmed under this hold."""

    @property
    def epoch(self) -> int:
        """The epoch of this hold."""

    @property
    def before_server_ms(self) -> int | None:
        """When the control row was last written before this claim, by its server's clock.

        None where the store has no servers, or there was no control row.
        """

    @property
    def claimed_server_ms(self) -> int | None:
        """When this claim was written, by the server's clock; None where nobody can say.

        It is never less than ``before_server_ms``, whatever that clock shows: only a greater one tells
        the server's time.
        """

    @property
    def done(self) -> bool:
        """Whether the hold was fenced, released or given up: every further change is refused."""


class LogStore(Protocol):
    """Logs with one writer each. Implementations: memory (with an adversary), LevelDB, HBase."""

    @property
    def pipeline_depth(self) -> int:
        """How many appends of one hold may usefully be under way at once."""

    @property
    def row_bytes_max(self) -> int:
        """The largest payload of one row. Callers check it before they take an id for the row."""

    async def head(self, log: LogId) -> Control | None:
        """Return the log's control row as stored now, or None if there is none."""

    async def claim(self, log: LogId, owner: str, *, keep_after: RowId = ROW_ID_MIN) -> Hold:
        """Take a message log: epoch + 1, durable on return.

        ``keep_after`` is the start of the idempotency window: older range entries may go.

        Raises:
            StaleGeneration, Deleted: see control.claimed.
            Fenced: another claim came between.
            OutcomeUnknown: claim again.
        """

    async def open_payloads(self, topic_hold: Hold, number: int) -> Hold:
        """Return a hold on a payload log under the topic's epoch. Writes nothing yet.

        Raises:
            Fenced: the payload log has a higher epoch: the *topic* hold is fenced too.
        """

    async def append(self, hold: Hold, batch: Batch) -> None:
        """Write rows, side rows and the new pointer; on disk and counting on return.

        Calls on one hold take effect in the order in which they were made. A batch that is refused
        before anything was sent leaves the hold usable.

        Raises:
            BodyTooLarge: the store can't hold a row or the batch; nothing was written.
            Unavailable: nothing of it counts, or ever will; ``Hold.done`` says whether the hold goes on.
            Fenced, OutcomeUnknown, StorageFull: see above.
        """

    async def negate(self, hold: Hold, first: RowId, last: RowId, pointer: int) -> int:
        """Negate the counting rows in ``[first, last]`` whose ``t`` is ``pointer``; return how many.

        Durable on return, with ``edits`` + 1 if any row was found (also if all of them were negated
        before, as a redo finds them).
        """

    async def seal(self, hold: Hold, at: RowId) -> None:
        """Seal an open payload log, also an empty one without a control row."""

    async def mark_published(self, hold: Hold, reference: RowId) -> None:
        """Record the row id of the committed reference on a sealed payload log."""

    async def raise_floor(self, hold: Hold, floor: RowId) -> None:
        """Raise the floor of a message log; lower values change nothing."""

    async def drop(self, hold: Hold) -> None:
        """Declare that a payload log's rows may go."""

    async def server_ms(self, hold: Hold) -> int | None:
        """Return what time it is, in ms, where a message log lies; None: nobody can say.

        It is the time of a write that this call makes, which changes nothing.
        """

    async def release(self, hold: Hold) -> bool:
        """Hand a message log off if everything sent is confirmed; else just let go (False)."""

    async def tombstone(self, log: LogId, owner: str) -> None:
        """Mark the topic's generation deleted; fences every holder. Idempotent.

        Raises:
            StaleGeneration: a newer generation is there.
        """

    async def scan(
        self,
        log: LogId,
        after: RowId,
        through: RowId,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Rows:
        """Return counting rows with ids in ``(after, through]``, in order, at least the floor.

        At most ``rows_max`` rows and about ``bytes_max`` payload bytes (one row at least).

        Raises:
            Unavailable: what answered is stale and stayed so.
        """

    async def side(self, log: LogId, kind: bytes, key: bytes) -> list[SideRow]:
        """Return the counting side rows of one kind and key, the oldest first."""

    async def payload_logs(
        self, topic: TopicId, generation: int | None = None
    ) -> list[tuple[LogId, Control]]:
        """Return the payload logs that a topic has control rows for (of one generation, or all)."""

    async def sweep_log(
        self,
        hold: Hold,
        expired_before_ms: int,
        rows_max: int,
        *,
        side_before: RowId = ROW_ID_MIN,
    ) -> Swept:
        """Remove one slice of a held message log.

        First rows strictly below the floor, then rows below the pointer whose own lifetime ended
        before ``expired_before_ms``, then old side rows. The row *at* the pointer always stays. ``side_before`` is the start of the idempotency window:
        a side row is old if its id is below that and not above the pointer.
        """

    async def sweep_payloads(self, topic_hold: Hold, number: int, rows_max: int) -> Swept:
        """Remove one slice of a *dropped* payload log's rows; does nothing in any other state."""

    async def forget_payloads(self, topic_hold: Hold, number: int) -> None:
        """Remove the control row of a dropped payload log whose rows are gone."""

    async def sweep_generations(self, topic: TopicId, below: int, rows_max: int) -> Swept:
        """Remove one slice of rows, side rows and payload controls of generations < ``below``.

        The caller has read that generation ``below`` - 1 is deleted or superseded. Generation 0's
        message control row is never touched.
        """

    async def estimate(self, log: LogId) -> Estimate:
        """Return roughly how many rows and bytes the log has on disk."""

    async def compact(self, log: LogId) -> None:
        """Give space that sweeping freed back to the disk, where the store does that on request."""

    async def close(self) -> None:
        """Finish what is under way and close."""


class Record(NamedTuple):
    """A record's value and the version that a compare-and-set names."""

    value: bytes
    version: bytes


class RecordStore(Protocol):
    """Topics, pins, claims, cursors: small and few, each changed by compare-and-set."""

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None."""

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected`` (None: absent), durably.

        Returns the new version, or None if the record is different from what was expected.

        Raises:
            OutcomeUnknown: it may have been put.
        """

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``, in key order."""
