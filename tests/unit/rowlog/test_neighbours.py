"""One bad neighbour - a listener, a subscription, a shard, a node - holds up and ends nothing of the others."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.errors import OutcomeUnknown
from broker.rowlog import Message, Subscription, remote
from broker.rowlog.cell_keys import INDEX_COLUMN, entry_of
from broker.rowlog.listeners import LocalListeners
from broker.rowlog.remote import RemoteListeners
from broker.rowlog.row_table import NotWritten, WriteUnknown
from broker.rowlog.rows import Rows
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate
from tests.kit.garbage import no_cycle_through_a_traceback
from tests.unit.rowlog.world import INDEX, ROW, TABLE, Heard, World, until, virtual

MESSAGE = Message("mq", b"row", 2, 7, b"", b"payload")


class Unspeakable(Exception):
    """An error whose text can't be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error",
    [ValueError("half \ud800 a pair"), Unspeakable(), StopIteration(), StopAsyncIteration()],
)
def test_any_error_of_a_listener_is_one_failed_try(error: Exception) -> None:
    @virtual
    async def run(world: World) -> None:
        log = await world.log(Subscription("a", max_tries=2), "b")
        other = Heard()
        log.listen("a", Heard(error, error))
        log.listen("b", other)
        await log.start()
        with capture_logs() as told:
            await log.put(ROW)
            await until(lambda: log.figures.values["dead", "a"] == 1)
            await until(lambda: other.seqs == [1])
        (letter,) = await log.dead("a")
        assert (letter.tries, type(error).__name__ in letter.reason) in {(2, True), (2, False)}
        letter.reason.encode()
        assert not [each for each in told if each["log_level"] == "error"]

    run()


@virtual
async def test_failed_tries_and_calls_keep_nothing(world: World) -> None:
    process = await world.process()
    log, rows = process.log, process.rows
    for name in ("a", "b"):
        await log.subscribe(Subscription(name, max_tries=2))

    async def fails(_: Message) -> bool:
        raise ValueError("no")

    async def late(_: Message) -> bool:
        await asyncio.Event().wait()
        return True

    log.listen("a", fails)
    log.listen("b", late)
    await log.change_settings(listener_timeout_s=1.0)
    await log.start()
    check_and_put, scan = rows.check_and_put, rows.scan
    failing = [WriteUnknown, NotWritten, ZeroDivisionError] * 3

    async def broken_swap(*given: Any) -> bool:
        if failing:
            raise failing.pop()("no")
        return await check_and_put(*given)

    async def broken_scan(*given: Any, **named: Any) -> Any:
        if failing:
            raise failing.pop()("no")
        return await scan(*given, **named)

    with no_cycle_through_a_traceback(), capture_logs():
        rows.check_and_put = broken_swap  # type: ignore[method-assign]
        rows.scan = broken_scan  # type: ignore[method-assign]
        await log.put(ROW, payload=bytes(1000))
        await until(lambda: log.figures.values["dead", "b"] == 1)
        await until(lambda: log.figures.values["dead", "a"] == 1)
        failing.append(NotWritten)
        with suppress(NotWritten):
            await log.verify()
        assert not failing


@virtual
async def test_a_processor_that_a_bug_ends_is_begun_again_and_the_others_go_on(
    world: World,
) -> None:
    log = await world.log("a", "b")
    heard = {"a": Heard(), "b": Heard()}
    for name, listener in heard.items():
        log.listen(name, listener)
    scan, failing = log.index.pages, [True]

    def pages(subscription: str, since: int) -> object:
        if subscription == "a" and failing:
            raise ZeroDivisionError("a bug")
        return scan(subscription, since)

    log.index.pages = pages  # type: ignore[method-assign, assignment]
    await log.start()
    await log.put(ROW)
    await until(lambda: heard["b"].seqs == [1])
    epoch = await log.meta.epoch("mq.all")
    with capture_logs() as told:
        await pass_time(120)
    assert await log.meta.epoch("mq.all") == epoch, "the lease was kept"
    failures = [each for each in told if each["event"] == "rowlog processor failed"]
    assert {each["subscription"] for each in failures} == {"a"}
    assert 2 <= len(failures) <= 20, "it backs off"
    await log.put(ROW)
    await until(lambda: heard["b"].seqs == [1, 2], within_s=10)
    failing.clear()
    await until(lambda: heard["a"].seqs == [1, 2], within_s=60)


@virtual
async def test_a_row_that_a_bug_concerns_is_put_off_and_the_others_go_on(world: World) -> None:
    log = await world.log("a")
    heard = Heard()
    log.listen("a", heard)
    real = Rows.open

    async def broken(row: bytes) -> Any:
        if row == b"bad":
            raise ZeroDivisionError("a bug")
        return await real(log.messages, row)

    log.messages.open = broken  # type: ignore[method-assign]
    await log.start()
    with capture_logs() as told:
        await log.put(b"bad")
        for each in range(20):
            await log.put(b"good%d" % each)
        await until(lambda: len(heard.messages) == 20)
        await pass_time(50)
    assert [each["event"] for each in told if each["log_level"] == "error"] == [
        "rowlog row put off"
    ]
    log.messages.open = lambda row: real(log.messages, row)  # type: ignore[method-assign]
    await until(lambda: len(heard.messages) == 21, within_s=60)


@virtual
async def test_a_subscription_that_can_not_be_counted_holds_up_no_other_and_no_sweep(
    world: World,
) -> None:
    settings = {"sweep_ms": 60_000}
    log = await world.log("a", Subscription("b", max_tries=1), settings=settings)
    for name in ("a", "b"):
        log.listen(name, Heard(False, False, False))
    count, swept = log.index.count_dead, []

    async def count_dead(subscription: str, limit: int) -> int:
        if subscription == "a":
            await pass_time(30)
            raise NotWritten("the region does not answer")
        return await count(subscription, limit)

    sweep = log.repair.sweep

    async def noted(*given: Any, **named: Any) -> None:
        swept.append(world.clock.monotonic())
        await sweep(*given, **named)

    log.index.count_dead = count_dead  # type: ignore[method-assign]
    log.repair.sweep = noted  # type: ignore[method-assign]
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead_messages", "b"] == 1, within_s=70)
    await pass_time(200)
    assert len(swept) >= 3


@virtual
async def test_a_shard_that_hangs_holds_up_no_other(world: World) -> None:
    process = await world.process(shards=4)
    log = process.log
    await log.subscribe(Subscription("a"))
    heard = Heard()
    log.listen("a", heard)
    real, hung, asked = process.rows.scan, asyncio.Event(), []

    async def scan(table: bytes, start: bytes, *given: Any, **named: Any) -> Any:
        if table == INDEX and start[:1] == b"\x02" and not hung.is_set():
            asked.append(world.clock.monotonic())
            await hung.wait()
        return await real(table, start, *given, **named)

    process.rows.scan = scan  # type: ignore[method-assign]
    await log.start()
    rows = [b"row%d" % each for each in range(40)]
    for row in rows:
        await log.put(row)
    shards = {key[0] for key in world.entries()}
    behind = sum(key[0] == 2 for key in world.entries())
    assert shards == {0, 1, 2, 3}
    await until(lambda: len(heard.messages) == 40 - behind, within_s=30)
    for row in rows:
        await log.put(row)
    await until(lambda: len(heard.messages) == 80 - 2 * behind, within_s=30)
    assert len(asked) == 1, "one call of it is in flight"
    hung.set()
    await until(lambda: len(heard.messages) == 80, within_s=30)
    assert INDEX_COLUMN == b"messages:msg"


@virtual
async def test_a_late_call_for_later_entries_hides_no_earlier_ones(world: World) -> None:
    process = await world.process(shards=1)
    log = process.log
    await log.subscribe(Subscription("a"))
    await log.put(b"early")
    await pass_time(60)
    since = world.clock.now_ms()
    await log.put(b"late")
    real, hung = process.rows.scan, asyncio.Event()

    async def scan(*given: Any, **named: Any) -> Any:
        await hung.wait()
        return await real(*given, **named)

    async def rows(since: int) -> list[bytes]:
        return [entry.row async for page in log.index.pages("a", since) for entry in page]

    process.rows.scan = scan  # type: ignore[method-assign]
    with pytest.raises(NotWritten, match="does not answer"):
        await rows(since)
    whole = asyncio.ensure_future(rows(0))
    await pass_time(1)
    hung.set()
    assert await whole == [b"early", b"late"]


@virtual
async def test_a_scan_of_the_whole_index_that_failed_is_repeated(world: World) -> None:
    process = await world.process(shards=1)
    log, heard = process.log, Heard(False)
    await log.subscribe(Subscription("a", max_tries=1))
    log.listen("a", heard)
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "a"] == 1)
    await pass_time(300)
    real, failed = process.rows.scan, []

    async def scan(table: bytes, *given: Any, **named: Any) -> Any:
        if table == INDEX and world.clock.monotonic() < over:
            failed.append(world.clock.monotonic())
            raise NotWritten("the region moves")
        return await real(table, *given, **named)

    (letter,) = await log.dead("a")
    over = world.clock.monotonic() + 2
    process.rows.scan = scan  # type: ignore[method-assign]
    await log.revive(letter)
    await until(lambda: heard.seqs == [1, 1], within_s=30)
    assert failed


@virtual
async def test_a_region_that_hangs_and_a_row_that_fails_hold_up_no_sweep_of_the_others(
    world: World,
) -> None:
    process = await world.process()
    log, rows = process.log, process.rows
    await log.subscribe(Subscription("a"))
    for row in (b"bad", b"good", b"hung", b"other"):
        await log.put(row)
    for key in world.entries():
        del world.stored[INDEX][key]
    rows.splits = [b"hung", b"i", b"p"]
    scan, get = rows.scan, rows.get

    async def hanging(table: bytes, start: bytes, stop: bytes, *given: Any, **named: Any) -> Any:
        if table == TABLE and start < b"i" and (not stop or stop > b"hung"):
            await pass_time(25)
            raise NotWritten("the region does not answer")
        return await scan(table, start, stop, *given, **named)

    async def failing(table: bytes, keys: Any, columns: Any) -> Any:
        if table == TABLE and b"bad" in keys:
            raise OutcomeUnknown("A message's state changes too often.")
        return await get(table, keys, columns)

    rows.scan, rows.get = hanging, failing  # type: ignore[method-assign]
    with pytest.raises((NotWritten, OutcomeUnknown)):
        await log.verify(mend=True)
    found = (entry_of(key, b"") for key in world.entries())
    assert {each[0].row for each in found if each} == {b"good", b"other"}


# Nodes that listen.


class SlowNode:
    """A connection to a node whose listeners take a second."""

    requests_in_flight = 0
    usable = True
    idle_since = float("inf")

    def __init__(self, url: str, headers: Any) -> None:
        del headers
        self.url = url

    def is_fresh(self, idle_s_max: float) -> bool:
        del idle_s_max
        return True

    async def exchange(self, ask: Any, timeout_s: float) -> Any:
        del timeout_s
        if ask.method == "GET":
            return SimpleNamespace(status=200, body=b'{"listeners": ["a"]}')
        await pass_time(1)
        return SimpleNamespace(status=200, body=b'{"done": true}')

    def close(self, reason: str = "") -> None:
        """Do nothing."""


@pytest.fixture
def slow_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connected(connection: Any, seconds: float) -> None:
        """Do nothing."""

    monkeypatch.setattr(remote, "OutboundConnection", SlowNode)
    monkeypatch.setattr(remote, "open_connection", connected)


@pytest.mark.usefixtures("slow_nodes")
def test_the_time_of_a_call_counts_from_when_it_is_sent() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = SimpleNamespace(url="http://node")
        members = SimpleNamespace(
            members=SimpleNamespace(nodes={1: node}), me=SimpleNamespace(url="local:")
        )
        listeners: Any = RemoteListeners(
            "mq", LocalListeners(), lambda: members, VirtualClock(loop)
        )
        await listeners.look()
        offers = [asyncio.create_task(listeners.offer("a", MESSAGE, 1.5)) for _ in range(390)]
        await pass_time(0.5)
        await listeners.look()
        assert listeners.has("a"), "a node is asked, also while all connections are in use"
        assert await asyncio.gather(*offers) == [True] * 390

    simulate(main)
