"""A request's deadline holds wherever it waits: carried to the next leader, or in a claim that hangs."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import Fenced, NoLeader, Overloaded
from broker.topics.settings import PublishOptions
from tests.kit.bench import Bench, Gate, settle


def soon(bench: Bench, seconds: float) -> PublishOptions:
    return PublishOptions(deadline=bench.clock.monotonic() + seconds)


async def test_a_carried_publish_is_refused_at_its_deadline(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    append, claim = Gate(), Gate()
    bench.table.on("append", append.before)
    under_way = asyncio.ensure_future(bench.publish(b"sent"))
    await append.reached.wait()
    waiting = [
        asyncio.ensure_future(bench.publish(b"%d" % number, options=soon(bench, 1.5 + number)))
        for number in range(2)
    ]
    await settle()
    bench.table.on("head", claim.before)
    bench.leader().end(Fenced("let go"))
    append.open()
    await claim.reached.wait()
    begun = bench.clock.monotonic()
    with pytest.raises(Overloaded, match="deadline"):
        await waiting[0]
    assert bench.clock.monotonic() - begun < 1.6
    assert not waiting[1].done()
    claim.open()
    await waiting[1]
    await asyncio.gather(under_way, return_exceptions=True)
    assert b"0" not in await bench.payloads()


async def test_a_claim_that_hangs_holds_no_request_beyond_its_deadline(bench: Bench) -> None:
    await bench.create()
    claim = Gate()
    bench.table.on("make", claim.before)
    begun = bench.clock.monotonic()
    with pytest.raises(NoLeader):
        await bench.publish(b"a", options=soon(bench, 1.5))
    assert bench.clock.monotonic() - begun < 1.6
    claim.open()
    await bench.publish(b"b")
    assert await bench.payloads() == [b"b"]
