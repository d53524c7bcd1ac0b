"""Decide which invalid transactions are settled, and record how far the clean-up of a topic has passed.

A transaction that failed without a rollback stays *invalid*: the service keeps its pointer in a list, and every
snapshot carries that list. The clean-up (inversion.py) rolls back the messages of such a transaction, in every topic.
Then the pointer may be *pruned*: removed from the list. From then on every new snapshot takes the pointer for a
committed one. So **no topic may have a message of a pruned pointer that is not rolled back, then or later**.

A pointer is **settled** if all of this holds, by a snapshot of the service and this node's clock::

    it is invalid              so it was begun, and it can neither be committed nor be begun again
    its age                    is more than the longest life of a transaction and the margin, so each broker refuses
                               to publish under it
    below all in progress      a running transaction keeps the list of pointers in progress at its begin
    at or below the last one   that the snapshot knows, so no later transaction has a lower pointer

``bound`` is the least pointer that is not settled by its age, or because of a transaction in progress. One **pass**
over a topic has four steps, and each is on disk before the next begins::

    1  announce   the topic's record says: no publish under a pointer below ``bound`` any more
    2  refuse     the topic's leader obeys the announcement, and waits for its batches in flight
    3  invert     roll back in all pages from ``start`` on; the last change is one of the log's own head
    4  record     the topic's record says: passed up to ``bound``, over this set of invalid pointers

Let P be a pointer below ``bound`` that was invalid in the pass's snapshot. After step 4 no message of P is left that
is not rolled back. For:

* *A message stored before step 2* lies in a page of the chain. Step 3 has gone over the pages from ``start`` on. Below
  ``start`` no page has a pointer at or above the former pass's bound: that pass looked at each of them. It has also
  rolled back the lower pointers. Clocks don't decide in which pages an entry may lie. Ids may run ahead of the clock,
  and the clock of the service ahead of the broker's. So the times in ids and pointers prove nothing.
* *A message that this leader stores later* is checked against ``refused_below`` when its batch is formed. All batches
  formed before have their outcome.
* *A write that a former leader has sent* expects a head that exists no more: the claim, or the last change of step 3,
  came between.
* *A later leader* claims after the last change of step 3; else that change would have failed. So it claims after
  step 1, and reads the announcement before its first publish of a transaction, even if its clock is wrong.
* *A topic without a leader* need not be claimed if it was handed off with the pointer of the last pass. Every change
  in flight had failed by then, or the pass has seen it. Later leaders read the announcement, which is written before
  the check.

**Pruning** (broker/transactions/prune.py) takes a new snapshot, writes the announcement for all topics (*pruned*),
reads the records of all topics, and removes those pointers that every live topic has passed::

    a topic created later     its leader reads the announcement for all topics before its first publish of a transaction
    a topic created before    has no record of a pass in this generation, and delays pruning until a sweep has passed it
    a deleted topic           shows no messages any more; created again, it is one of the two above
    the generation changes    a record of a pass counts only for its own generation; a pass whose leader finds another
                              generation records nothing
    a leader can't be reached the topic is not passed, and delays pruning
    another service           the record has a fingerprint of the invalid pointers below its bound. Another service, or
                              one restored from an older copy, has other pointers, and all topics are passed again

Several brokers may use one service. Each broker prunes only by its own records; the operator then prunes through the
lowest pointer that all brokers name. Only the broker that prunes writes the announcement for all topics. A topic that
another broker creates later has none, so there only the age of a pointer refuses a publish, by that broker's clock.

Payloads that are *stored* under P and never published are never shown, and are removed by their age. A published
reference has the pointer in its own column, and is rolled back like any other entry.

This relies on the assumptions in design.md, and on one more: reads of the records and of the tail are never stale.
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
from broker.model import LOG_KEY_MIN, POINTERS_PER_MS, LogKey, Snapshot, TopicId
from broker.storage.head import Head
from broker.storage.keys import topic_prefix
from broker.storage.records import RecordStore

PASS_PREFIX: Final = b"invalid/"
PRUNED_KEY: Final = b"pruned"
PASS_EVERY_MS: Final = 3_600_000
"""The least time between passes of a topic: each reads the columns of about a day, and claims a topic without leader."""
PUT_TRIES_MAX: Final = 8


def bound_of(snapshot: Snapshot, *, now_ms: int, life_ms: int, margin_ms: int) -> int:
    """Return the pointer below which every invalid transaction of a snapshot is settled.

    Args:
        snapshot: of the service, taken after ``now_ms`` was read, or just before.
        now_ms: the time, ms since 1970.
        life_ms: the longest life of a transaction.
        margin_ms: more than the clocks may differ by.
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
    """Return a text that identifies a set of pointers."""
    digest = hashlib.blake2b(array("q", pointers).tobytes(), digest_size=12)
    return f"{len(pointers)}-{digest.hexdigest()}"


class SettlingRecord(NamedTuple):
    """A topic's record of the clean-up.

    ``refused``: the leader accepts no publish under a lower pointer, in any generation. The other fields count only
    for ``generation``. Messages of the invalid pointers below ``bound``, which have this ``fingerprint``, are rolled
    back. No page below ``start`` has a pointer at or above ``bound``. ``high`` is the greatest pointer that the pass
    saw, ``through`` the log's last id then, ``began_ms`` the time when it began.
    """

    generation: int
    refused: int = 0
    bound: int = 0
    fingerprint: str = ""
    start: LogKey = LOG_KEY_MIN
    high: int = 0
    through: LogKey = LOG_KEY_MIN
    began_ms: int = 0


def announced(before: SettlingRecord | None, generation: int, bound: int) -> SettlingRecord:
    """Return the record that announces a pass up to ``bound``."""
    if before is None or before.generation != generation:
        refused = bound if before is None else max(before.refused, bound)
        return SettlingRecord(generation, refused)
    return before._replace(refused=max(before.refused, bound))


class SnapshotView:
    """The invalid pointers of a snapshot of the service, up to a bound. Each fingerprint is computed once."""

    def __init__(self, snapshot: Snapshot, bound: int) -> None:
        """Take the invalid pointers of a snapshot."""
        self.bound = bound
        self.settled = invalid_below(snapshot, bound)
        """The invalid pointers below the bound, ascending."""
        self._snapshot = snapshot
        self._fingerprints: dict[int, str] = {}

    def fingerprint(self, bound: int) -> str:
        """Return the fingerprint of the invalid pointers below a bound."""
        known = self._fingerprints.get(bound)
        if known is None:
            below = invalid_below(self._snapshot, bound)
            known = self._fingerprints[bound] = fingerprint(below)
        return known


class SettlingWork(NamedTuple):
    """The work of a pass: the page from which it starts, and the invalid pointers to roll back.

    ``goes_on``: the pass before has rolled back all lower invalid pointers.
    """

    start: LogKey
    invalid: Sequence[int]
    goes_on: bool

    def is_invalid(self, pointer: int) -> bool:
        """Return whether a pointer is one of ``invalid``."""
        return self.any_in(pointer, pointer)

    def any_in(self, low: int, high: int) -> bool:
        """Return whether one of ``invalid`` lies in ``[low, high]``."""
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
    """Return the work of a pass over a topic; None if it can wait, or has no work."""
    settled = view.settled
    if not settled:
        return None
    if before is None or not counts(before, generation, view):
        return SettlingWork(LOG_KEY_MIN, settled, goes_on=False)
    new = settled[bisect_left(settled, before.bound) :]
    if not new or 0 <= now_ms - before.began_ms < every_ms:
        return None
    return SettlingWork(before.start, new, goes_on=True)


def counts(record: SettlingRecord, generation: int, view: SnapshotView) -> bool:
    """Return whether a record counts for this generation, and for the service of this view."""
    if record.generation != generation or not record.bound:
        return False
    return record.fingerprint == view.fingerprint(record.bound)


def has_nothing(before: SettlingRecord, work: SettlingWork, tail: Head) -> bool:
    """Return whether, by its tail, a topic without a leader has no message of these transactions, nor one in flight.

    Three facts prove it: the topic was handed off, so nothing was in flight then; its last id is the one that the pass
    before saw; and that pass saw none of these pointers.
    """
    is_let_go = tail.is_open and not tail.owner
    is_as_passed = work.goes_on and tail.pointer == before.through
    return is_let_go and is_as_passed and not work.any_in(0, before.high)


# Records.


def _key(topic: TopicId) -> bytes:
    return PASS_PREFIX + topic_prefix(topic)


def encode(record: SettlingRecord) -> bytes:
    """Encode a record."""
    fields = record._asdict() | {"start": record.start.hex(), "through": record.through.hex()}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes) -> SettlingRecord:
    """Decode a record. Raises StorageCorrupt."""
    try:
        fields = json.loads(value)
        ids = {name: bytes.fromhex(fields[name]) for name in ("start", "through")}
        return SettlingRecord(**{**fields, **ids})
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
    """Announce for all topics, also for later ones, that no publish under a pointer below ``below`` is accepted.

    Raises:
        Unavailable, OutcomeUnknown: the caller must not prune.
    """
    for _ in range(PUT_TRIES_MAX):
        found = await records.get(PRUNED_KEY)
        version = None if found is None else found.version
        if found is not None and int(json.loads(found.value)["below"]) >= below:
            return
        if await records.put_if(PRUNED_KEY, version, json.dumps({"below": below}).encode()):
            return
    raise OutcomeUnknown("Another node kept changing the announcement of pruning.")


async def refused_below(records: RecordStore, topic: TopicId) -> int:
    """Return the pointer below which no transaction may publish to a topic. Raises Unavailable."""
    (record, _), pruned = await asyncio.gather(read_pass(records, topic), pruned_below(records))
    return pruned if record is None else max(record.refused, pruned)
