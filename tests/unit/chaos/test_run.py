"""A run without a cluster: a workload that answers its own requests, and faults without an effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from chaos import progress_line, run
from chaos.history import Event, calls_of, load
from chaos.nemesis import Repeated
from chaos.run import Run, RunPlan
from chaos.run_folder import EXIT_CODES, NOT_BACK, Judged, RunFolder, read_verdict
from chaos.target import Ability, Target
from chaos.workloads import REGISTRY, WorkloadSurroundings

pytestmark = pytest.mark.slow

TOPIC = "default:t"
SILENT_S = 0.2
LONG_S = 60.0
"""Longer than any delay of a busy machine."""
PLAN = RunPlan(
    ("answered",),
    ("fault",),
    0.3,
    1,
    window_s=(0.3, 0.3),
    together=(1, 1),
    unavailable_s=LONG_S,
    healing_s=SILENT_S,
)
SHORT = replace(PLAN, unavailable_s=SILENT_S)


class Answered:
    """Publishes one message after another to a list; when ``silent`` is set, it gives no answers."""

    name = "answered"
    silent: ClassVar[asyncio.Event]
    """The target sets it to stop all answers."""
    asks_when_healed: ClassVar[bool] = True

    def __init__(self) -> None:
        self.log: list[str] = []

    async def prepare(self, around: WorkloadSurroundings) -> None:
        pass

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not self.silent.is_set():
                self.publish(around)
            elif self.asks_when_healed:
                asked = {"payloads": ["never"], "generation": 1}
                ending = around.history.invoke("q", "publish", TOPIC, asked)
                await stop.wait()
                ending.unknown("no answer")
            await around.clock.sleep(0.001)

    def publish(self, around: WorkloadSurroundings) -> None:
        asked = {"payloads": [f"m{len(self.log)}"], "generation": 1}
        ending = around.history.invoke("p", "publish", TOPIC, asked)
        self.log += asked["payloads"]
        ending.ok({"last": f"{len(self.log):020x}"}, f"{len(self.log):020x}")

    async def finish(self, around: WorkloadSurroundings) -> None:
        rows = [[f"{number:020x}", label, None] for number, label in enumerate(self.log, 1)]
        ending = around.history.invoke("final", "read", TOPIC, {"after": "", "generation": 1})
        ending.ok({"rows": rows})


class Registered(Answered):
    """Sets a register again and again, and publishes nothing."""

    name = "registered"

    def publish(self, around: WorkloadSurroundings) -> None:
        value = f"v{len(self.log)}"
        asked = {"key": "k", "expected": self.log[-1] if self.log else None, "value": value}
        ending = around.history.invoke("p", "cas", "", asked)
        self.log.append(value)
        ending.ok({"version": len(self.log)})

    async def finish(self, around: WorkloadSurroundings) -> None:
        ending = around.history.invoke("final@broker-1", "get", "", {"key": "k"})
        ending.ok({"value": self.log[-1], "version": len(self.log)})


class Told:
    """A fault that says it happened, but has no effect."""

    name = "fault"
    needs: ClassVar[frozenset[Ability]] = frozenset()
    begins: ClassVar[bool] = True
    heals: ClassVar[bool] = True

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        if not self.begins:
            raise OSError("can't begin")
        return {"node": "broker-1"}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        if not self.heals:
            raise OSError("can't heal")
        return {"happened": True}


class Mended(Target):
    """A target without faults; after ``mend``, its topics may be silent."""

    def __init__(self, *, silent: bool = False) -> None:
        super().__init__(("broker-1",), ("http://127.0.0.1:1",), session_s=1)
        self._silent = silent

    async def mend(self) -> list[str]:
        if self._silent:
            Answered.silent.set()
        return ["nothing"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "answered", Answered)
    monkeypatch.setitem(REGISTRY, "registered", Registered)
    monkeypatch.setattr(run, "NEMESES", {"fault": Told})
    monkeypatch.setattr(run, "WELL_S", 0.0)
    monkeypatch.setattr(run, "ENDING_S", LONG_S)
    monkeypatch.setattr(progress_line, "LOOK_S", 0.01)
    monkeypatch.setattr(Answered, "silent", asyncio.Event(), raising=False)


async def played(target: Target, plan: RunPlan = PLAN) -> tuple[Judged, list[Event]]:
    running = Run(target, plan)
    judged = await running.run()
    assert running.history is not None
    return judged, running.history.events


def faults(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.process, event.type) for event in events if event.op == "fault"]


async def test_a_topic_that_comes_back_is_judged_and_valid() -> None:
    judged, events = await played(Mended())
    assert judged.outcome == "valid", judged
    assert "unavailable" not in judged.not_judged
    assert judged.facts["promises"]["unavailable_ms"] == 60_000
    assert faults(events) == [
        ("nemesis 1 fault", "invoke"),
        ("nemesis 1 fault", "ok"),
        ("nemesis 2 mending", "invoke"),
        ("nemesis 2 mending", "ok"),
    ]
    assert dict(judged.figures.faults) == {"fault": 1}


async def test_a_run_in_which_nothing_is_published_is_judged_by_its_registers() -> None:
    judged, _ = await played(Mended(), replace(PLAN, workloads=("registered",)))
    assert judged.outcome == "valid", judged
    assert "unavailable" not in judged.not_judged
    assert judged.figures.acknowledged == judged.figures.operations["cas ok"] >= 100


@pytest.mark.parametrize("where", ["run", "finish", "begin", "heal", "revive", "mend"])
async def test_an_error_hides_no_violation_and_loses_no_history(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The log loses its first message, and then a workload, the fault or the target fails."""

    class Faulty(Answered):
        async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
            await super().run(around, stop)
            fail("run")

        async def finish(self, around: WorkloadSurroundings) -> None:
            del self.log[0]
            await super().finish(around)
            fail("finish")

    class Breaking(Mended):
        async def revive(self) -> list[str]:
            fail("revive")
            return []

        async def mend(self) -> list[str]:
            fail("mend")
            return await super().mend()

    class Failing(Told):
        async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
            fail("begin")
            return await super().begin(target, chance)

        async def heal(self, target: Target) -> Mapping[str, Any]:
            fail("heal")
            return await super().heal(target)

    def fail(at: str) -> None:
        if at == where:
            raise KeyError("no such key")

    monkeypatch.setitem(REGISTRY, "answered", Faulty)
    monkeypatch.setitem(run.NEMESES, "fault", Failing)
    folder = RunFolder(tmp_path / "run")
    judged = await Run(Breaking(), PLAN, folder).run()
    assert "KeyError('no such key')" in " ".join(judged.unsure)
    wanted = "unknown" if where == "mend" else "invalid"  # A broken cluster is not read.
    assert read_verdict(folder.folder / "verdict.json").outcome == judged.outcome == wanted
    assert load(folder.segment(1) / "history.jsonl")


async def test_an_error_in_a_later_segment_hides_no_earlier_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class First(Answered):
        prepared: ClassVar[int] = 0

        async def prepare(self, around: WorkloadSurroundings) -> None:
            First.prepared += 1
            if First.prepared == 2:
                raise KeyError("no such key")

        async def finish(self, around: WorkloadSurroundings) -> None:
            del self.log[0]
            await super().finish(around)

    monkeypatch.setitem(REGISTRY, "answered", First)
    plan = replace(PLAN, seconds=0.6, segment_s=0.3)
    judged = await Run(Mended(), plan, RunFolder(tmp_path / "run")).run()
    assert (judged.outcome, judged.facts["segments"]) == ("invalid", ["invalid", "unknown"])


async def test_a_topic_that_is_silent_when_all_is_healed_is_waited_for_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "ENDING_S", SILENT_S)  # The run waits so long for the silent topic.
    judged, _ = await played(Mended(silent=True), SHORT)
    assert judged.outcome == "invalid", judged
    assert {name for name, _ in judged.violations} == {"unavailable"}
    assert judged.figures.silent_well_s > SILENT_S


async def test_a_topic_without_requests_after_the_fault_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Answered, "asks_when_healed", False)
    monkeypatch.setattr(run, "ENDING_S", SILENT_S)
    judged, _ = await played(Mended(silent=True))
    assert judged.outcome == "unknown"
    assert NOT_BACK in judged.unsure


async def test_a_run_without_faults_is_unknown() -> None:
    judged, _ = await played(Mended(), replace(PLAN, seconds=0.0))
    assert (judged.outcome, EXIT_CODES[judged.outcome]) == ("unknown", 2)
    assert judged.unsure[-1] == "no fault happened"


async def test_a_requested_fault_that_the_target_does_not_allow_makes_the_verdict_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Kill(Told):
        needs = frozenset({Ability.KILL})

    monkeypatch.setitem(run.NEMESES, "kill", Kill)
    asked = replace(PLAN, nemeses=("fault", "kill"))
    judged, _ = await played(Mended(), asked)
    assert (judged.outcome, judged.unsure) == ("unknown", ["these faults did not happen: kill"])
    assert list(judged.facts["left_out"]) == ["kill"]
    judged, _ = await played(Mended(), replace(asked, each_must_happen=False))
    assert judged.outcome == "valid", "a mix has the faults that the target allows"


async def test_a_run_that_is_interrupted_ends_early_and_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hours = replace(PLAN, seconds=7200.0, segment_s=3600.0, window_s=(3600.0, 3600.0))
    running = Run(Mended(), hours)

    async def begin(*_: object) -> Mapping[str, Any]:
        running.interrupted.set()
        return {}

    monkeypatch.setattr(Told, "begin", begin)
    judged = await running.run()
    assert judged.outcome == "valid", judged
    assert judged.facts["segments"] == ["valid"]
    assert judged.figures.happened == {"fault": 1}


async def test_each_segment_has_a_history_and_a_verdict_of_its_own(tmp_path: Path) -> None:
    plan = replace(PLAN, seconds=0.6, segment_s=0.3)
    judged = await Run(Mended(), plan, RunFolder(tmp_path / "run")).run()
    assert judged.outcome == "valid", judged
    parts = [read_verdict(tmp_path / "run" / number / "verdict.json") for number in ("001", "002")]
    assert judged.facts["segments"] == ["valid", "valid"]
    assert [part.figures.happened for part in parts] == [{"fault": 1}, {"fault": 1}]
    assert sum(part.figures.acknowledged for part in parts) == judged.figures.acknowledged
    for number, part in enumerate(parts, 1):
        calls = calls_of(load(tmp_path / "run" / f"{number:03}" / "history.jsonl"))
        told = sum(call.op == "publish" and call.is_ok for call in calls)
        assert told == part.figures.acknowledged >= 100


@pytest.mark.parametrize("which", ["begins", "heals"])
async def test_a_fault_that_could_not_be_healed_lasts_until_the_target_is_mended(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "heals", False)
    monkeypatch.setattr(Told, which, False)
    judged, events = await played(Mended())
    assert faults(events) == [
        ("nemesis 1 fault", "invoke"),
        ("nemesis 2 mending", "invoke"),
        ("nemesis 1 fault", "ok"),
        ("nemesis 2 mending", "ok"),
    ]
    assert judged.unsure == ["these faults did not happen: fault", "no fault happened"]


@pytest.mark.parametrize("fails", [1, 2])
async def test_a_fault_that_could_not_be_undone_is_undone_when_the_target_is_mended(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[str] = []

    class Lasting(Repeated):
        name = "lasting"
        needs = frozenset()

        async def act(self, target: Target, chance: random.Random) -> object:
            return "done"

        async def undo(self, target: Target) -> None:
            undone.append("tried")
            if len(undone) <= fails:
                raise OSError("no answer")

    monkeypatch.setitem(run.NEMESES, "fault", Lasting)
    judged, events = await played(Mended())
    assert undone == ["tried", "tried"]
    assert ("nemesis 1 fault", "ok") in faults(events)
    assert ("lasting could not be undone: OSError('no answer')" in judged.unsure) is (fails == 2)


async def test_a_fault_that_could_not_be_begun_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Told, "begins", False)
    _, events = await played(Mended())
    assert faults(events)[:2] == [("nemesis 1 fault", "invoke"), ("nemesis 1 fault", "ok")]
