"""One run: a plan carried out, everything healed, the history judged.

::

    start ─▶ prepare ─▶ workload runs, faults come and go ─▶ heal ─▶ quiet ─▶ final reads ─▶ checkers

What a run must also show is that it was worth anything: enough was acknowledged, leaders changed, faults
happened, and in the end everything that was owed arrived within ``QUIET_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from broker.config.sections import LimitsConfig, SweepConfig, TopicsConfig
from broker.storage.hold import PageBounds
from broker.testing import mutants
from broker.testing.simulation.cluster import PAGES
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.trace import CLAIMED, UNEXPECTED, Trace, TraceLine
from broker.testing.simulation.world import in_world
from chaos.checkers import UNAVAILABLE, Promises, Verdict, Violation, check
from chaos.history import Event, Operation
from chaos.workloads import REGISTRY
from chaos.workloads.client_process import PAUSE_MEANS_MAX
from chaos.workloads.topics import PAUSES
from chaos.workloads.workload import SIMULATED, Scale
from tests.kit.seeds.faults import KINDS, Nothing
from tests.kit.seeds.plan import CLOCK_OFF_MS, Fault, Plan
from tests.kit.seeds.rare import WORKLOADS
from tests.kit.seeds.stage import StagedCluster

END_S: Final = 120.0
"""How long the workload's processes may take to end what they are doing, beside their pauses."""
GOES_ON_S: Final = 5.0
WAIT_S_MAX: Final = 50.0
QUIET_S: Final = 60.0
"""Within this after healing nothing is late any more, and every node serves."""
SHORT_LIVED: Final = ("topics",)
"""Workloads whose messages expire. Where clocks are wrong by more than nodes may differ, they do so early or
late, and nothing prevents it; so there clocks are wrong by less."""
PROMISES: Final = Promises(early_ms=6_000, late_ms=6_000, stored_late_ms=6_000)
"""Three times what the clocks of two nodes may differ by."""
HEALING_MS: Final = 10_000
"""For so long after a fault nothing is promised of a topic's availability."""
SMALL_PAGES: Final = PageBounds(bytes_max=2_048, cells_max=6, packed_from=2)
"""So small that most leaders roll."""
CALM_S: Final = 20.0
"""For so long the workload goes on when everything is healed, where availability is judged."""
ACKNOWLEDGED_MIN: Final = 300
LEADERS_MIN: Final = 5
FAULTS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        acknowledged: messages, not requests.
        unknown: requests of which nobody knows whether they were carried out.
        epochs: how often a topic was claimed.
        leaders: how often another process claimed it than the one before: its leader changed.
        faults: those that happened, by kind.
        happened: what the network and storage did, by name.
        seconds: of virtual time.
    """

    plan: Plan
    verdict: Verdict
    events: list[Event]
    lines: list[TraceLine]
    acknowledged: int
    unknown: int
    epochs: int
    leaders: int
    faults: Counter[str]
    happened: Counter[str]
    seconds: float

    @property
    def is_enough(self) -> bool:
        """Whether enough happened in its minutes for the seed to count."""
        share = min(self.plan.minutes / 3.0, 1.0)
        return (
            self.acknowledged >= ACKNOWLEDGED_MIN * share
            and self.leaders >= LEADERS_MIN * share
            and len(self.faults) >= FAULTS_MIN
        )

    @property
    def is_availability_judged(self) -> bool:
        """Whether a topic that was silent for too long would have been found."""
        return UNAVAILABLE not in self.verdict.unjudged

    @property
    def digest(self) -> str:
        """The history's fingerprint."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(json.dumps(asdict(event), sort_keys=True).encode() + b"\n")
        return digest.hexdigest()


def simulate(plan: Plan) -> Outcome:
    """Carry a plan out, without what its mutant takes away."""

    async def main(loop: SimLoop, trace: Trace) -> Outcome:
        return await _Run(loop, trace, plan).run()

    with nullcontext() if plan.mutant is None else mutants.in_force(plan.mutant):
        return in_world(plan.seed, main)


class _Run:
    """A run under way."""

    def __init__(self, loop: SimLoop, trace: Trace, plan: Plan) -> None:
        self.plan = plan
        self.trace = trace
        self.loop = loop
        self.cluster = StagedCluster(
            nodes=plan.nodes,
            seed=plan.seed,
            bias=plan.bias,
            scale=_scale(plan),
            settings=_settings(small=plan.small),
            bounds=SMALL_PAGES if plan.small else PAGES,
        )
        self.faults: Counter[str] = Counter()
        self.workload = (REGISTRY | WORKLOADS)[plan.workload]()
        self.late: list[Violation] = []

    async def run(self) -> Outcome:
        """Do everything."""
        cluster, plan = self.cluster, self.plan
        if plan.clock_off_ms_max is not None:
            cluster.clock_off_ms_max = plan.clock_off_ms_max
        elif plan.workload in SHORT_LIVED:
            cluster.clock_off_ms_max = CLOCK_OFF_MS
        for machine, off_ms in zip(cluster.machines, plan.clocks, strict=False):
            machine.wall.step(off_ms)
        await cluster.start()
        await self.workload.prepare(cluster)
        stop = asyncio.Event()
        began_s = self.loop.time()
        working = asyncio.ensure_future(self.workload.run(cluster, stop))
        breaking = [
            asyncio.ensure_future(self._fault(number, fault, began_s))
            for number, fault in enumerate(plan.faults)
        ]
        await asyncio.sleep(plan.minutes * 60)
        if plan.goes_on:
            await self._until_enough(began_s)
        for task in breaking:
            task.cancel()
        await asyncio.wait(breaking) if breaking else None
        self.trace.add("healed")
        cluster.heal()
        if plan.unavailable_ms is not None:
            await asyncio.sleep(CALM_S * plan.thin)
        stop.set()
        # A process may have begun its longest pause just before.
        longest_s = PAUSE_MEANS_MAX * PAUSES * plan.pause_s
        await self._within(working, END_S + longest_s, "processes of the workload still work")
        await self._quiet()
        await self.workload.finish(cluster)
        return self._outcome()

    async def _until_enough(self, began_s: float) -> None:
        """Go on while too little has happened, for as long again at most."""
        until_s = self.loop.time() + self.plan.minutes * 60
        share = min(self.plan.minutes / 3.0, 1.0)
        number = len(self.plan.faults)
        kind = "moves" if self.plan.nodes > 1 else "kill"
        while self.loop.time() < until_s and (
            _acknowledged(self.cluster.history.calls()) < ACKNOWLEDGED_MIN * share
            or leader_changes(self.trace.judged) < LEADERS_MIN * share
        ):
            at_s = self.loop.time() - began_s + GOES_ON_S * self.plan.thin
            await self._fault(number, Fault(kind, at_s, GOES_ON_S, number), began_s)
            number += 1

    async def _fault(self, number: int, fault: Fault, began_s: float) -> None:
        await asyncio.sleep(max(began_s + fault.at_s - self.loop.time(), 0))
        asked: dict[str, Any] = {"kind": fault.kind}
        ending = self.cluster.history.invoke(f"nemesis {number}", "fault", "", asked)
        chance = random.Random(f"{fault.draw}/{fault.kind}")
        try:
            body = KINDS[fault.kind].begin(self.cluster, chance, fault.lasts_s)
            async with body as detail:
                asked["detail"] = detail
                self.faults[fault.kind] += 1
                self.trace.add(f"fault: {fault.kind}", **detail)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(fault.lasts_s)
        except Nothing:
            ending.ok({"happened": False})
        except asyncio.CancelledError:
            # Some take a while to begin, and some to end.
            ending.ok({"happened": "detail" in asked, "cut": "the run's end"})
        else:
            self.trace.add(f"mended: {fault.kind}", **detail)
            ending.ok({"happened": True})

    async def _within(self, task: asyncio.Future[None], seconds: float, what: str) -> None:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        if done:
            task.result()
            return
        self.late.append(Violation("late", f"{what} {seconds:g} s after everything was healed"))
        task.cancel()
        await asyncio.wait((task,))

    async def _quiet(self) -> None:
        """Wait until storage has nothing under way and every node serves."""
        deadline_s = self.loop.time() + QUIET_S
        cluster = self.cluster
        while cluster.table.still_to_come or len(cluster.up) < len(cluster.machines):
            if self.loop.time() > deadline_s:
                down = [machine.name for machine in cluster.machines if not machine.is_up]
                self.late.append(Violation("late", f"not up {QUIET_S:g} s after healing: {down}"))
                return
            await asyncio.sleep(0.1)

    def _promises(self) -> Promises:
        if (self.plan.clock_off_ms_max or 0.0) > CLOCK_OFF_MS:
            return Promises(early_ms=None, late_ms=None)
        return replace(
            PROMISES,
            early_ms=self.plan.early_ms,
            unavailable_ms=self.plan.unavailable_ms,
            healing_ms=HEALING_MS,
        )

    def _outcome(self) -> Outcome:
        history = self.cluster.history
        calls = history.calls()
        judged = check(calls, self._promises())
        verdict = judged._replace(
            violations=(
                *judged.violations,
                *self.late,
                *self.cluster.wrong,
                *_unexpected(self.trace.judged),
            )
        )
        ways = sum((machine.way.happened for machine in self.cluster.machines), Counter[str]())
        return Outcome(
            self.plan,
            verdict,
            history.events,
            list(self.trace.lines),
            acknowledged=_acknowledged(calls),
            unknown=sum(call.outcome == "unknown" for call in calls),
            epochs=sum(line.event == CLAIMED for line in self.trace.judged),
            leaders=leader_changes(self.trace.judged),
            faults=self.faults,
            happened=self.cluster.table.happened + ways + self.cluster.network.happened,
            seconds=self.loop.time(),
        )


def _unexpected(lines: Iterable[TraceLine]) -> list[Violation]:
    """Return the errors that nobody foresaw: whatever they did, they are defects."""
    return [
        Violation(
            "unexpected_error",
            f"at {line.time_s:.3f} s in {line.process or 'a client'}: {dict(line.fields)}",
        )
        for line in lines
        if line.event == UNEXPECTED
    ]


def leader_changes(lines: Iterable[TraceLine]) -> int:
    """Count the claims of topics by another process than the one that had claimed them before."""
    led: dict[str, str] = {}
    changes = 0
    for line in lines:
        if line.event == CLAIMED:
            changes += led.setdefault(line.fields["topic"], line.process) != line.process
            led[line.fields["topic"]] = line.process
    return changes


def _acknowledged(calls: Iterable[Operation]) -> int:
    """Count the messages that were acknowledged."""
    done = (call for call in calls if call.is_ok and call.op in {"publish", "store"})
    return sum(len(call.asked["payloads"]) for call in done)


def _scale(plan: Plan) -> Scale:
    return replace(
        SIMULATED,
        pause_s=plan.pause_s,
        wait_s=min(SIMULATED.wait_s * plan.thin, WAIT_S_MAX),
        ttl_s=round(SIMULATED.ttl_s * plan.thin),
        transaction_s=SIMULATED.transaction_s * plan.thin,
    )


def _settings(*, small: bool) -> Mapping[str, Any]:
    sweep = SweepConfig(sweep_interval_s=20, sweep_rest_s=10, sweep_margin_s=5, sweep_rows_max=20)
    if not small:
        return {"sweep": sweep}
    return {
        "sweep": sweep,
        "topics": TopicsConfig(cache_bytes_max=4000),
        "limits": LimitsConfig(queued_requests_max=4, waiting_polls_max=6, idempotency_keys_max=4),
    }


__all__ = ["KINDS", "Outcome", "simulate"]
