"""Claim an instance id: a node's number, 0 to 255, in coordination and in storage.

The number is the first byte of the counter in each log key that a node makes, so no two nodes may have the same one. A
node claims it twice, in this order::

    {root}/nodes/007   ephemeral: this incarnation lives            ends with its session
    instance/007       record: {"incarnation", "url", "session"}    stays; only compared and set

The ephemeral node decides between nodes that live at the same time. The record outlives it. A node that restarts finds
its former number in the record. An incarnation may be cut off for so long that another node gets its number. It then
learns this from the record, even if ZooKeeper does not answer, and has to stop.

A node may take a number when the number's ephemeral node is gone. A node with the same URL may take it at once: it
listens at this address now, so the former process is dead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from broker import logs, retries
from broker.clock import Clock
from broker.coordination.members import SAME_URL
from broker.coordination.ports import (
    INSTANCES_MAX,
    Coordinator,
    InstanceTaken,
    Membership,
    NodeInfo,
)
from broker.errors import OutcomeUnknown, StorageCorrupt, Unavailable
from broker.storage.records import RecordStore

PREFIX: Final = b"instance/"
CHECK_EVERY_S: Final = 10.0
START_S: Final = 15.0
"""The time that a starting node waits for a coordinator that does not answer."""
PAUSE_S: Final = 0.1

Answer = TypeVar("Answer")

log = logs.get_logger()


class Claim(NamedTuple):
    """The record of an instance id: the incarnation that claimed it last."""

    incarnation: str
    url: str
    session: int


def record_key(instance: int) -> bytes:
    """Return the key of an instance id's record."""
    assert 0 <= instance < INSTANCES_MAX
    return PREFIX + b"%03d" % instance


def encode(claim: Claim) -> bytes:
    """Encode a claim, with its session in hexadecimal, as in ZooKeeper's tools."""
    fields = {**claim._asdict(), "session": hex(claim.session)}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(key: bytes, value: bytes) -> Claim:
    """Decode a claim. Raises StorageCorrupt."""
    try:
        fields = json.loads(value)
        return Claim(fields["incarnation"], fields["url"], int(fields["session"], 16))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageCorrupt(f"the record {key.decode()} does not decode") from error


async def read_claims(records: RecordStore) -> dict[int, Claim]:
    """Return the last claim of each instance id, without unreadable records. Raises Unavailable."""
    claims: dict[int, Claim] = {}
    for key, record in await records.scan_prefix(PREFIX):
        try:
            claims[int(key.removeprefix(PREFIX))] = decode(key, record.value)
        except (StorageCorrupt, ValueError) as error:
            log.warning("a claim of an instance id has no effect", problem=str(error))
    return claims


def choose(live: Mapping[int, NodeInfo], claims: Mapping[int, Claim], url: str) -> int:
    """Return the number to claim: the one that the node at ``url`` had, else the lowest free one.

    Raises:
        Unavailable: other live nodes hold all numbers.
    """
    free = [n for n in range(INSTANCES_MAX) if n not in live or live[n].url == url]
    if not free:
        raise Unavailable(f"Live nodes hold all {INSTANCES_MAX} instance ids.")
    had = [n for n in free if n in live or (n in claims and claims[n].url == url)]
    return (had or free)[0]


class _Retries:
    """Retries calls to a coordinator that does not answer: a session may end while a node starts."""

    def __init__(self, clock: Clock) -> None:
        """Retry for ``START_S`` from now on."""
        self._clock = clock
        self._until = clock.monotonic() + START_S

    async def answer(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the first answer. Raises Unavailable if there is none in time."""
        return await retries.repeat(ask, self._pause_s, self._clock.sleep)

    def _pause_s(self, error: Exception, _: int) -> float | None:
        is_over = self._clock.monotonic() >= self._until
        return PAUSE_S if isinstance(error, Unavailable) and not is_over else None


async def claim_instance(
    coordinator: Coordinator,
    records: RecordStore,
    me: NodeInfo,
    clock: Clock,
    *,
    configured: int | None = None,
) -> Membership:
    """Become a member under the instance id ``configured``, else under a free one.

    ``me`` has the other properties; its ``instance`` does not matter. If the session is lost meanwhile, this waits for
    a new one.

    Raises:
        InstanceTaken: another live node has the configured id; the error names the node.
        Unavailable: coordination did not answer for ``START_S``, storage does not answer, or no id is free.
    """
    retries = _Retries(clock)
    while True:
        instance = configured
        if instance is None:
            live = await retries.answer(coordinator.nodes)
            instance = choose(live, await read_claims(records), me.url)
        joining = partial(coordinator.join, me._replace(instance=instance))
        try:
            membership = await retries.answer(joining)
        except InstanceTaken:
            if configured is not None:
                raise
            continue  # Another node took it meanwhile.
        live_now = partial(retries.answer, coordinator.nodes)
        try:
            if await _record_claim(live_now, records, membership):
                return membership
        except BaseException:
            await membership.leave()
            raise
        await membership.leave()


async def _record_claim(
    live: Callable[[], Awaitable[Mapping[int, NodeInfo]]],
    records: RecordStore,
    membership: Membership,
) -> bool:
    """Write the claim into its record. Return False if this incarnation does not have the id any more.

    This reads the record *before* it checks that the ephemeral node is still its own, and then changes that version
    of the record. A node that gets the id later writes the record after this read. So this write can't replace that
    node's claim.
    """
    me = membership.me
    key = record_key(me.instance)
    while True:
        found = await records.get(key)
        if found is not None and _is_of(me, key, found.value):
            return True
        holder = (await live()).get(me.instance)
        if holder is None or holder.incarnation != me.incarnation:
            return False
        value = encode(Claim(me.incarnation, me.url, membership.session))
        with suppress(OutcomeUnknown):  # The next read of the record shows the outcome.
            await records.put_if(key, None if found is None else found.version, value)


def _is_of(me: NodeInfo, key: bytes, value: bytes) -> bool:
    """Return whether a record is this incarnation's. An unreadable record is not, so it is written again."""
    try:
        return decode(key, value).incarnation == me.incarnation
    except StorageCorrupt:
        return False


async def check_incarnation(records: RecordStore, me: NodeInfo) -> str | None:
    """Return the reason why this incarnation must stop, or None if no other incarnation has claimed its id since.

    Raises:
        Unavailable: the record can't be read now.
        StorageCorrupt: the record does not decode.
    """
    key = record_key(me.instance)
    found = await records.get(key)
    if found is None:
        return None
    claim = decode(key, found.value)
    if claim.incarnation == me.incarnation:
        return None
    where = claim.url if claim.url != me.url else SAME_URL
    return f"Instance id {me.instance} was claimed by another incarnation, at {where}."


async def until_superseded(
    records: RecordStore, membership: Membership, clock: Clock, *, every_s: float = CHECK_EVERY_S
) -> str:
    """Wait until another incarnation has this one's instance id, and return the reason to stop.

    This checks every ``every_s``, and at once when the members have changed, as they do under a new session.
    """
    changed = asyncio.Event()
    membership.on_change(changed.set)
    membership.stopped.add_done_callback(lambda _: changed.set())
    while not membership.stopped.done():
        changed.clear()
        # Without an answer nothing proves that another incarnation has the id; check again later.
        with suppress(Unavailable):
            reason = await check_incarnation(records, membership.me)
            if reason is not None:
                return reason
        await _wait_for_change(changed, clock, every_s)
    return membership.stopped.result()


async def _wait_for_change(changed: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait for a change, or until the time is over."""
    waiting = [
        asyncio.ensure_future(changed.wait()),
        asyncio.ensure_future(clock.sleep(seconds)),
    ]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
