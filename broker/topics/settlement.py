"""Which invalid transactions are settled, and how far the clean-up of a topic has passed: decisions and records.

A transaction that failed without a rollback stays *invalid*: the service keeps its pointer in a list, and every
snapshot carries that list. The clean-up (inversion.py) rolls back what such a transaction published, in every topic.
Then the pointer may be *pruned*: removed from the list. From then on every new snapshot takes the pointer for a
committed one, so **a pruned pointer must never be found in any topic that is not rolled back, then or later**.

A pointer is **settled**, as a snapshot of the service and this node's clock show, if all of this holds::

    it is invalid              so it was begun, and it can neither be committed nor be begun once more
    its age                    is more than the longest life of a transaction and the margin: each broker refuses to
                               publish under it
    below all in progress      a transaction that runs keeps the places at which it was held when it began
    at or below the last one   that the snapshot knows, so no later transaction has a lower pointer

``bound`` is the least pointer for which that is not so by age or by what is in progress. One **pass** over a topic
does four steps, and each is on disk before the next begins::

    1  announce   the topic's record says: no publish under a pointer below ``bound`` any more
    2  refuse     the topic's leader goes by it, and waits for what it has under way
    3  invert     all pages from ``start`` on, and last a change of its own head
    4  record     the topic's record says: passed up to ``bound``, over this set of invalid pointers

Why a pointer P below ``bound`` that was invalid in the pass's snapshot is found nowhere after step 4:

* *What was stored before step 2* lies in a page of the chain. Step 3 has gone over those from ``start`` on. Below
  ``start`` no page has a pointer at or above the former pass's bound, which that pass saw by itself; and it has gone
  over the lower ones. No clock is asked where entries may lie: ids may run ahead of the clock, and the
  clock of the service ahead of the broker's, so the times in ids and pointers are no proof.
* *What this leader stores later* passes ``refused_below`` when its batch is formed. Batches formed before have landed.
* *What a former leader has sent* expects a head that is no more: the claim, or the last change of step 3, came between.
* *What a later leader stores*: it claims after the last change of step 3, or that change would have failed. So it
  claims after step 1, and it reads the announcement before its first publish of a transaction, whatever its clock says.
* *A topic that nobody leads* is not claimed if it was handed off with the pointer of the last pass: every change that
  was under way failed or was seen by then, and later leaders read the announcement, which is written before the look.

**Pruning** (broker/transactions/prune.py) takes a new snapshot, writes the announcement for all topics (*pruned*),
reads the records of all topics, and removes those pointers that every live topic has passed::

    a topic created later     its leader reads the announcement for all topics before its first publish of a transaction
    a topic created before    has no record of a pass in this generation, and holds pruning up until a sweep has passed it
    a deleted topic           shows nothing any more; created anew it is one of the two above
    a generation changes      a record of a pass counts for its own generation alone; a pass whose leader finds another
                              generation records nothing
    a leader can't be reached the topic is not passed, and holds pruning up
    another service           the record has a fingerprint of the invalid pointers below its bound: another service, or
                              one restored from an older copy, has others, and all topics are passed anew

Several brokers may use one service. Each prunes by its own records alone; the operator then prunes through the lowest
pointer that all of them name.

What is *stored* under P and never published is never shown, and goes by age. A published reference has the pointer in
its own column, and is inverted like any other entry.

Assumed, beside what design.md assumes: the records and the tail that are read here are current.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from broker.errors import OutcomeUnknown, StorageCorrupt
from broker.model import POINTERS_PER_MS, ROW_ID_MIN, RowId, Snapshot, TopicId
from broker.storage.head import Head
from broker.storage.keys import topic_prefix
from broker.storage.records import RecordStore

PASS_PREFIX: Final = b"invalid/"
PRUNED_KEY: Final = b"pruned"
PASS_EVERY_MS: Final = 3_600_000
"""A topic is not passed more often: each pass reads the columns of about a day, and claims what is not led."""
PUT_TRIES_MAX: Final = 8


def bound_of(snapshot: Snapshot, *, now_ms: int, life_ms: int, margin_ms: int) -> int:
    """Return the pointer below which every invalid transaction of a snapshot is settled.

    Args:
        snapshot: of the service, taken after ``now_ms`` was read, or just before.
        now_ms: the time, ms since 1970.
        life_ms: the longest life of a transaction.
        margin_ms: what clocks may differ by, and more.
    """
    begun = max([snapshot.read_pointer, *snapshot.invalids[-1:]])
    by_age = _settled_by_age(now_ms, life_ms, margin_ms)
    return _below_in_progress(min(by_age, begun + 1), snapshot)


def _settled_by_age(now_ms: int, life_ms: int, margin_ms: int) -> int:
    return max(now_ms - life_ms - margin_ms, 0) * POINTERS_PER_MS


def _below_in_progress(bound: int, snapshot: Snapshot) -> int:
    return min([bound, *snapshot.in_progress[:1]])


def invalid_below(snapshot: Snapshot, bound: int) -> Sequence[int]:
    """Return the invalid pointers below a bound, ascending."""
    return snapshot.invalids[: bisect_left(snapshot.invalids, bound)]


def fingerprint(pointers: Sequence[int]) -> str:
    """Return what tells one set of pointers from another one."""
    digest = hashlib.blake2b(array("q", pointers).tobytes(), digest_size=12)
    return f"{len(pointers)}-{digest.hexdigest()}"


class SettlingRecord(NamedTuple):
    """What a topic's record says of the clean-up.

    ``refused``: no publish under a lower pointer, in any generation. The others are of ``generation`` alone: below
    ``bound`` the invalid pointers with this ``fingerprint`` are inverted. No page below ``start`` has a pointer at or
    above ``bound``. ``high`` is the greatest pointer that was seen, ``through`` the last id then, ``began_ms`` when.
    """

    generation: int
    refused: int = 0
    bound: int = 0
    fingerprint: str = ""
    start: RowId = ROW_ID_MIN
    high: int = 0
    through: RowId = ROW_ID_MIN
    began_ms: int = 0


def announced(before: SettlingRecord | None, generation: int, bound: int) -> SettlingRecord:
    """Return the record that announces a pass up to ``bound``."""
    if before is None or before.generation != generation:
        refused = bound if before is None else max(before.refused, bound)
        return SettlingRecord(generation, refused)
    return before._replace(refused=max(before.refused, bound))


class SnapshotView:
    """What a snapshot of the service shows, up to a bound. Fingerprints are taken once."""

    def __init__(self, snapshot: Snapshot, bound: int) -> None:
        """Take the invalid pointers as they are."""
        self.bound = bound
        self.invalids = snapshot.invalids
        self.settled = invalid_below(snapshot, bound)
        """The invalid pointers below the bound, ascending."""
        self._fingerprints: dict[int, str] = {}

    def fingerprint(self, bound: int) -> str:
        """Return what tells the invalid pointers below a bound from others."""
        known = self._fingerprints.get(bound)
        if known is None:
            below = self.invalids[: bisect_left(self.invalids, bound)]
            known = self._fingerprints[bound] = fingerprint(below)
        return known


class SettlingWork(NamedTuple):
    """What a pass has to do: from which page on, for which invalid pointers.

    ``goes_on``: the pass before has seen to all lower ones.
    """

    start: RowId
    invalid: Sequence[int]
    goes_on: bool

    def is_invalid(self, pointer: int) -> bool:
        """Whether a pointer is among them."""
        return self.any_in(pointer, pointer)

    def any_in(self, low: int, high: int) -> bool:
        """Whether one of them lies in ``[low, high]``."""
        at = bisect_left(self.invalid, low)
        return at < len(self.invalid) and self.invalid[at] <= high


def work_of(
    before: SettlingRecord | None,
    generation: int,
    view: SnapshotView,
    *,
    now_ms: int,
    every_ms: int,
) -> SettlingWork | None:
    """Return what a pass over a topic would have to do; None: it can wait, or there is nothing."""
    settled = view.settled
    if not settled:
        return None
    if before is None or not counts(before, generation, view):
        return SettlingWork(ROW_ID_MIN, settled, goes_on=False)
    new = settled[bisect_left(settled, before.bound) :]
    if not new or 0 <= now_ms - before.began_ms < every_ms:
        return None
    return SettlingWork(before.start, new, goes_on=True)


def counts(record: SettlingRecord, generation: int, view: SnapshotView) -> bool:
    """Whether what a record says is true of this generation, and of the service that gave this view."""
    if record.generation != generation or not record.bound:
        return False
    return record.fingerprint == view.fingerprint(record.bound)


def has_nothing(before: SettlingRecord, work: SettlingWork, tail: Head) -> bool:
    """Whether a topic that nobody leads has nothing of these transactions, and nothing on its way, by its tail.

    It was let go in good order, so that nothing was under way then; it has the last id that the pass before saw;
    and that pass saw no pointer among these.
    """
    is_let_go = tail.is_open and not tail.owner
    is_as_passed = work.goes_on and tail.pointer == before.through
    return is_let_go and is_as_passed and not work.any_in(0, before.high)


# Records.


def _key(topic: TopicId) -> bytes:
    return PASS_PREFIX + topic_prefix(topic)


def encode(record: SettlingRecord) -> bytes:
    """Encode a record."""
    told = record._asdict() | {"start": record.start.hex(), "through": record.through.hex()}
    return json.dumps(told, separators=(",", ":")).encode()


def decode(value: bytes) -> SettlingRecord:
    """Decode a record. Raises StorageCorrupt."""
    try:
        told = json.loads(value)
        rows = {name: bytes.fromhex(told[name]) for name in ("start", "through")}
        return SettlingRecord(**{**told, **rows})
    except (ValueError, TypeError, KeyError) as error:
        raise StorageCorrupt("the record of a clean-up does not decode") from error


async def read_pass(
    records: RecordStore, topic: TopicId
) -> tuple[SettlingRecord | None, bytes | None]:
    """Return a topic's record, and its version. Raises Unavailable, StorageCorrupt."""
    found = await records.get(_key(topic))
    return (None, None) if found is None else (decode(found.value), found.version)


async def put_pass(
    records: RecordStore, topic: TopicId, version: bytes | None, record: SettlingRecord
) -> bytes | None:
    """Put a topic's record; None: it was changed meanwhile. Raises Unavailable, OutcomeUnknown."""
    return await records.put_if(_key(topic), version, encode(record))


async def passes(
    records: RecordStore,
) -> AsyncGenerator[list[tuple[TopicId, SettlingRecord]], None]:
    """Yield the records of all topics, some at a time."""
    async with aclosing(records.pages(PASS_PREFIX)) as pages:
        async for page in pages:
            yield [(_topic_of(key), decode(record.value)) for key, record in page]


def _topic_of(key: bytes) -> TopicId:
    namespace, topic, _ = key[len(PASS_PREFIX) :].decode().split(":")
    return TopicId(namespace, topic)


async def pruned_below(records: RecordStore) -> int:
    """Return the pointer below which pruning was announced for all topics."""
    found = await records.get(PRUNED_KEY)
    return 0 if found is None else int(json.loads(found.value)["below"])


async def announce_pruning(records: RecordStore, below: int) -> None:
    """Announce for all topics, also those to come, that nothing is published under a pointer below this.

    Raises:
        Unavailable, OutcomeUnknown: nothing may be pruned.
    """
    for _ in range(PUT_TRIES_MAX):
        found = await records.get(PRUNED_KEY)
        version = None if found is None else found.version
        if found is not None and int(json.loads(found.value)["below"]) >= below:
            return
        if await records.put_if(PRUNED_KEY, version, json.dumps({"below": below}).encode()):
            return
    raise OutcomeUnknown("The announcement of pruning was changed again and again.")


async def refused_below(records: RecordStore, topic: TopicId) -> int:
    """Return the pointer below which no transaction may publish to a topic. Raises Unavailable."""
    (record, _), pruned = await asyncio.gather(read_pass(records, topic), pruned_below(records))
    return pruned if record is None else max(record.refused, pruned)
