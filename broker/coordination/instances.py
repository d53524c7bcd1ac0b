"""Instance ids: which number 0-255 a node has, claimed where everybody looks and where data lies.

The number is the first byte of every row that a node writes, so no two nodes may have the same one. It is
claimed twice, in this order::

    {root}/nodes/007   ephemeral: this incarnation lives            ends with its session
    instance/007       record: {"incarnation", "url", "session"}    stays; only compared and set

The ephemeral node decides between nodes that are there at the same time. The record outlives it: by it a
node that starts again finds the number that it had, and an incarnation that was cut off for so long that
its number went to another finds that out also where ZooKeeper says nothing. It has to stop then.

A number may be taken when its ephemeral node is gone, and at once by a node with the same URL: this process
listens there now, so the one that did before is dead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_fixed

from broker import logs
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
"""How long a node that starts waits for a coordinator that can't be asked."""
PAUSE_S: Final = 0.1

Answer = TypeVar("Answer")

log = logs.get_logger()


class Claim(NamedTuple):
    """What the record of an instance id says: who had it last."""

    incarnation: str
    url: str
    session: int


def record_key(instance: int) -> bytes:
    """Return the key of an instance id's record."""
    assert 0 <= instance < INSTANCES_MAX
    return PREFIX + b"%03d" % instance


def encode(claim: Claim) -> bytes:
    """Write a claim; the session in hexadecimal, as ZooKeeper's tools show it."""
    fields = {**claim._asdict(), "session": hex(claim.session)}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(key: bytes, value: bytes) -> Claim:
    """Read a claim. Raises StorageCorrupt."""
    try:
        fields = json.loads(value)
        return Claim(fields["incarnation"], fields["url"], int(fields["session"], 16))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageCorrupt(f"the record {key.decode()} does not decode") from error


async def read_claims(records: RecordStore) -> dict[int, Claim]:
    """Return who had each instance id last, as far as the records make sense. Raises Unavailable."""
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
        Unavailable: all numbers are held by other nodes that live.
    """
    free = [n for n in range(INSTANCES_MAX) if n not in live or live[n].url == url]
    if not free:
        raise Unavailable(f"All {INSTANCES_MAX} instance ids are held by nodes that live.")
    had = [n for n in free if n in live or (n in claims and claims[n].url == url)]
    return (had or free)[0]


class _Patience:
    """Asks a coordinator again that can't be asked: a session may end while a node starts, too."""

    def __init__(self, clock: Clock) -> None:
        """Be patient from now on."""
        self._clock = clock
        self._until = clock.monotonic() + START_S

    async def answer(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the first answer. Raises Unavailable if there is none for too long."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            wait=wait_fixed(PAUSE_S),
            stop=self._is_over,
            sleep=self._clock.sleep,
            reraise=True,
        )
        # tenacity runs coroutine functions only, and a partial of one is none to it.
        answer: Answer = await retrying(_awaited, ask)
        return answer

    def _is_over(self, state: RetryCallState) -> bool:
        del state
        return self._clock.monotonic() >= self._until


async def _awaited(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    return await ask()


async def claim_instance(
    coordinator: Coordinator,
    records: RecordStore,
    me: NodeInfo,
    clock: Clock,
    *,
    configured: int | None = None,
) -> Membership:
    """Become a member: under the instance id ``configured``, else under one that is free.

    ``me`` says the rest; its ``instance`` does not matter. A session that is lost meanwhile is waited for.

    Raises:
        InstanceTaken: another node has the configured id and lives; it says which.
        Unavailable: coordination can't be asked for ``START_S``, storage can't, or no id is free.
    """
    patience = _Patience(clock)
    while True:
        instance = configured
        if instance is None:
            live = await patience.answer(coordinator.nodes)
            instance = choose(live, await read_claims(records), me.url)
        joining = partial(coordinator.join, me._replace(instance=instance))
        try:
            membership = await patience.answer(joining)
        except InstanceTaken:
            if configured is not None:
                raise
            continue  # Another took it meanwhile.
        live_now = partial(patience.answer, coordinator.nodes)
        try:
            if await _record(live_now, records, membership):
                return membership
        except BaseException:
            await membership.leave()
            raise
        await membership.leave()


async def _record(
    live: Callable[[], Awaitable[Mapping[int, NodeInfo]]],
    records: RecordStore,
    membership: Membership,
) -> bool:
    """Write the claim into its record; False if the id is not this incarnation's any more.

    The record is set from what it was *before* the ephemeral node was seen to be ours: whoever gets the
    id after that writes later than we read, so ours does not replace theirs.
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
        with suppress(OutcomeUnknown):  # The record itself says, then.
            await records.put_if(key, None if found is None else found.version, value)


def _is_of(me: NodeInfo, key: bytes, value: bytes) -> bool:
    """Whether a record is this incarnation's; one that makes no sense is nobody's, and written anew."""
    try:
        return decode(key, value).incarnation == me.incarnation
    except StorageCorrupt:
        return False


async def check_incarnation(records: RecordStore, me: NodeInfo) -> str | None:
    """Return why this incarnation must stop, or None: nobody else has claimed its id since.

    Raises:
        Unavailable: the record can't be read now.
        StorageCorrupt: it does not decode.
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
    """Return, with the reason, once this incarnation must stop: another has its instance id.

    Looks every ``every_s``, and at once when the members have changed, as they do under a new session.
    """
    changed = asyncio.Event()
    membership.on_change(changed.set)
    membership.stopped.add_done_callback(lambda _: changed.set())
    while not membership.stopped.done():
        changed.clear()
        with suppress(Unavailable):  # Nothing is known against it; looked at again.
            reason = await check_incarnation(records, membership.me)
            if reason is not None:
                return reason
        await _first(changed, clock, every_s)
    return membership.stopped.result()


async def _first(changed: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait for a change, for so long at most."""
    waiting = [
        asyncio.ensure_future(changed.wait()),
        asyncio.ensure_future(clock.sleep(seconds)),
    ]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
