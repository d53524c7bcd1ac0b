"""The rowlog workload with a rowlog in memory; the test writes the logs of its processes."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.errors import Unavailable
from broker.rowlog import RowLog
from broker.rowlog.memory import MemoryRows
from chaos.checkers import Verdict, check
from chaos.workloads import Scale
from chaos.workloads import rowlog as workloads
from chaos.workloads.real import RealSurroundings
from chaos.workloads.rowlog import RowLogWorkload

SMALL = Scale(pause_s=0.001, final_s=0.3)


class Below:
    """One process of the rowlog; the test writes its log."""

    gateways = zookeepers = ("127.0.0.1:1",)

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rowlog-1.log"
        self.file.write_text("a line of another kind\n")
        self.calls = 0
        self.given: Mapping[str, Any] = {}
        self.ended = False

    async def begin(
        self, given: Mapping[str, Any], halted: Callable[[str], None]
    ) -> Mapping[str, Path]:
        self.given, self.halted = given, halted
        self.tell("ready")
        return {"rowlog-1": self.file}

    async def end(self) -> None:
        self.ended = True

    def tell(self, kind: str, **fields: object) -> None:
        line = {"kind": kind, "process": "rowlog-1", "log": self.given["id"]}
        with self.file.open("a") as file:
            file.write(json.dumps({**line, "time_ns": time.monotonic_ns(), **fields}) + "\n")

    def offer(self, row: str, seq: int, subscription: str, *, done: bool = True) -> None:
        self.calls += 1
        about = {"row": row, "seq": seq, "subscription": subscription, "call": str(self.calls)}
        self.tell("begin", **about)
        self.tell("end", **about, done=done)


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Below:
    rows = MemoryRows({})
    monkeypatch.setattr(workloads, "Thrift2Rows", lambda _: rows)
    monkeypatch.setattr(workloads, "LOOK_S", 0.001)

    def in_memory(_: None, table: str, *, id: str, **__: Any) -> RowLog:  # noqa: A002 - RowLog's own name.
        return RowLog(None, table, id=id, rows=rows)

    monkeypatch.setattr(workloads, "RowLog", in_memory)
    return Below(tmp_path)


async def judged(below: Below, act: Callable[[str, int], None]) -> Verdict:
    """Run the workload, call ``act`` with each acknowledged put, and return the verdict."""
    around, workload, stop = (
        RealSurroundings((), seed=1, scale=SMALL, beneath=below),
        RowLogWorkload(),
        asyncio.Event(),
    )
    await workload.prepare(around)
    running = asyncio.create_task(workload.run(around, stop))
    async with asyncio.timeout(20):
        while sum(each.op == "row-put" for each in around.history.events) < 20:
            await around.clock.sleep(0.001)
    stop.set()
    await running
    for call in around.history.calls():
        if call.op == "row-put" and call.is_ok:
            act(call.asked["row"], call.told["seq"])
    await workload.finish(around)
    assert below.ended
    return check(around.history.calls())


async def test_the_calls_of_all_processes_are_judged(below: Below) -> None:
    def act(row: str, seq: int) -> None:
        for name in below.given["subscriptions"]:
            below.offer(row, seq, name, done=False)
            below.offer(row, seq, name)

    verdict = await judged(below, act)
    assert verdict.is_valid, verdict
    assert verdict.counts["row-offer.ok"] > 4 * 5


async def test_a_line_that_cannot_be_read_ends_the_workload(below: Below) -> None:
    around, workload = RealSurroundings((), seed=1, scale=SMALL, beneath=below), RowLogWorkload()
    await workload.prepare(around)
    below.tell("end", call="none", done=True)  # No call began.
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as raised:
            await workload.run(around, asyncio.Event())
    assert raised.group_contains(KeyError)


@pytest.mark.slow
async def test_a_message_that_is_never_done_is_lost_and_a_halt_is_recorded(below: Below) -> None:
    def act(row: str, seq: int) -> None:
        below.halted("rowlog-1")
        below.offer(row, seq, "a")

    verdict = await judged(below, act)
    assert verdict.names == {"row_lost"}
    assert verdict.counts["row-halt.ok"] > 5


async def test_a_stage_without_hbase_is_refused() -> None:
    with pytest.raises(Unavailable, match="needs HBase"):
        await RowLogWorkload().prepare(RealSurroundings((), seed=1))
