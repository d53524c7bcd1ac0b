"""A rollback runs slice by slice: publishes run between slices, and an answered rollback is complete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import NoLeader, OutcomeUnknown
from broker.model import LogKey, Poll, RollbackRange, Snapshot
from broker.storage import hold
from broker.storage.ownpage import PageBounds
from broker.storage.table import HEAD, WriteUnknown
from broker.topics import cache
from tests.kit.bench import TOPIC, Bench, failing, passing, settle

POINTER = 7
ALL = Snapshot(transaction_id=100, read_pointer=100)
AT_ONCE = 3
CELLS = 10
COUNT = 4 * CELLS + 7


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "ROLLED_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(cache, "SLOTS_AT_ONCE", AT_ONCE)


async def published(bench: Bench, count: int = COUNT) -> list[LogKey]:
    """Publish messages under a pointer, each by itself, into several pages, and between them others."""
    bench.bounds = PageBounds(cells_max=CELLS)
    bench.restart()
    await bench.create(ttl_s=10_000)
    ids = []
    for number in range(count):
        ids.append((await bench.publish(b"undone", pointer=POINTER)).first)
        if number % 5 == 0:
            await bench.publish(b"kept")
    return ids


def rolling_back(bench: Bench, first: LogKey, last: LogKey) -> asyncio.Future[None]:
    return asyncio.ensure_future(bench.topics.rollback(TOPIC, RollbackRange(POINTER, first, last)))


async def shown(bench: Bench) -> int:
    """Return how many messages of the transaction a consumer sees. The cache and storage must show the same."""
    counts = []
    for _ in range(2):
        counts.append((await bench.payloads(Poll(snapshot=ALL))).count(b"undone"))
        bench.forget_cache()
    assert counts[0] == counts[1]
    return counts[0]


async def test_a_rollback_changes_few_cells_at_once_and_publishes_go_between(bench: Bench) -> None:
    ids = await published(bench)
    puts: list[int] = []

    async def slowly(real: Any, *arguments: Any, **named: Any) -> Any:
        puts.append(len(arguments[3]) - (HEAD in arguments[3]))
        await settle(10)
        return await real(*arguments, **named)

    bench.table.on("rolled", *[slowly] * COUNT)
    bench.table.calls.clear()
    rollback = rolling_back(bench, ids[0], ids[-1])
    between = 0
    while not rollback.done():
        await bench.publish(b"kept")
        between += not rollback.done()
    await rollback
    assert max(puts) == AT_ONCE
    assert sum(puts) == COUNT
    changes = [call for call in bench.table.calls if call in {"rolled", "append", "head"}]
    undone = "".join({"rolled": "r", "append": "a", "head": "h"}[call] for call in changes)
    assert "rr" not in undone[undone.index("a") :].replace("h", ""), "an append waits for one slice"
    assert between > len(puts) // 2
    assert await shown(bench) == 0
    assert (await bench.payloads()).count(b"kept") >= between + COUNT // 5


@pytest.mark.parametrize("low", [0, 1, CELLS - 1, 2 * CELLS + 3])
@pytest.mark.parametrize("high", [-1, -2, -CELLS])
async def test_parts_of_a_transaction_are_rolled_back(bench: Bench, low: int, high: int) -> None:
    ids = await published(bench)
    await rolling_back(bench, ids[low], ids[high])
    assert await shown(bench) == COUNT - len(ids[low : len(ids) + high + 1])


async def test_concurrent_rollbacks_both_count(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=CELLS)
    bench.restart()
    await bench.create()
    found = await bench.publish(*[b"undone"] * 6, pointer=POINTER)
    await bench.publish(*[b"x"] * 3, pointer=POINTER)
    seen = await bench.poll()
    ids = [message.id[:10] for message in seen]
    assert ids[0] == found.first
    both = [rolling_back(bench, ids[0], ids[1]), rolling_back(bench, ids[4], ids[5])]
    await asyncio.gather(*both)
    assert await shown(bench) == 2


@pytest.mark.parametrize("fails_at", [0, 1, 5, 12])
async def test_a_failed_rollback_is_unknown_and_may_be_repeated(
    bench: Bench, fails_at: int
) -> None:
    ids = await published(bench)
    bench.table.on("rolled", *[passing] * fails_at, *[failing(WriteUnknown("lost"))] * 1000)
    with pytest.raises(OutcomeUnknown):
        await rolling_back(bench, ids[0], ids[-1])
    bench.table.forget_hooks()
    bench.restart()
    await rolling_back(bench, ids[0], ids[-1])
    assert await shown(bench) == 0


async def test_a_rollback_is_unknown_if_the_leader_ends_between_two_slices(
    bench: Bench,
) -> None:
    ids = await published(bench)

    async def end(real: Any, *arguments: Any, **named: Any) -> Any:
        done = await real(*arguments, **named)
        bench.leader().end(NoLeader("over"))
        return done

    bench.table.on("rolled", end)
    with pytest.raises(OutcomeUnknown):
        await rolling_back(bench, ids[0], ids[-1])
    await rolling_back(bench, ids[0], ids[-1])
    assert await shown(bench) == 0


async def test_a_rollback_completes_although_its_pages_are_swept_meanwhile(bench: Bench) -> None:
    bench.settings["sweep_margin_ms"] = 0
    ids = await published(bench)
    await bench.pass_ms(600_000)

    async def sweep(real: Any, *arguments: Any, **named: Any) -> Any:
        done = await real(*arguments, **named)
        await bench.topics.update(TOPIC, {"ttl": "1"})
        await bench.pass_ms(3000)
        await bench.sweeper.sweep()
        assert bench.leader().hold.root.floor > ids[CELLS]
        return done

    bench.table.on("rolled", sweep)
    await asyncio.wait_for(rolling_back(bench, ids[0], ids[-1]), 60)
    assert await shown(bench) == 0
