"""One run: execute a plan, end all faults, and judge the history.

::

    start ─▶ prepare ─▶ workload runs, faults come and go ─▶ heal ─▶ quiet ─▶ final reads ─▶ checkers

A run must also show that it tested enough: enough messages were acknowledged, leaders changed, faults happened, and
after the last fault all late writes took effect within ``QUIET_S``.
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
from broker.storage.ownpage import PageBounds
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
from tests.kit.seeds.faults import KINDS
from tests.kit.seeds.kinds import Nothing
from tests.kit.seeds.plan import CLOCK_OFF_MS, Fault, Plan
from tests.kit.seeds.rare import WORKLOADS
from tests.kit.seeds.seeded_cluster import SeededCluster

END_S: Final = 120.0
"""The time in which the workload's processes end their calls in flight, in addition to their pauses."""
GOES_ON_S: Final = 5.0
WAIT_S_MAX: Final = 50.0
QUIET_S: Final = 60.0
"""Within this time after the last fault no write is late any more, and every node serves."""
SHORT_LIVED: Final = ("topics",)
"""Workloads whose messages expire. With clocks that differ by more than is allowed, messages expire early or late,
and no guard prevents it. So these workloads have smaller clock errors."""
PROMISES: Final = Promises(early_ms=6_000, late_ms=6_000, stored_late_ms=6_000)
"""Three times the allowed difference between two nodes' clocks."""
HEALING_MS: Final = 10_000
"""For this time after a fault, availability is not promised."""
SMALL_PAGES: Final = PageBounds(bytes_max=2_048, cells_max=6, packed_from=2)
"""So small that most leaders roll a page."""
CALM_S: Final = 20.0
"""The time for which the workload goes on after the last fault, if availability is judged."""
ACKNOWLEDGED_MIN: Final = 300
LEADERS_MIN: Final = 5
FAULTS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        acknowledged: the number of messages, not requests.
        unknown: the number of requests with an unknown outcome.
        epochs: the number of claims of topics.
        leaders: the number of claims by another process than the one before: the leader changed.
        faults: the number of faults by kind.
        happened: the events of network and storage, by name.
        seconds: the duration in virtual time.
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
        """True if the run tested enough for its duration."""
        share = min(self.plan.minutes / 3.0, 1.0)
        return (
            self.acknowledged >= ACKNOWLEDGED_MIN * share
            and self.leaders >= LEADERS_MIN * share
            and len(self.faults) >= FAULTS_MIN
        )

    @property
    def is_availability_judged(self) -> bool:
        """True if the checkers judged availability."""
        return UNAVAILABLE not in self.verdict.unjudged

    @property
    def digest(self) -> str:
        """The history's fingerprint."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(json.dumps(asdict(event), sort_keys=True).encode() + b"\n")
        return digest.hexdigest()


def simulate(plan: Plan) -> Outcome:
    """Execute a plan, on the product without the plan's mutant guard."""

    async def main(loop: SimLoop, trace: Trace) -> Outcome:
        return await _Run(loop, trace, plan).run()

    with nullcontext() if plan.mutant is None else mutants.in_force(plan.mutant):
        return in_world(plan.seed, main)


class _Run:
    """The state of a run."""

    def __init__(self, loop: SimLoop, trace: Trace, plan: Plan) -> None:
        self.plan = plan
        self.trace = trace
        self.loop = loop
        self.cluster = SeededCluster(
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
        """Execute the plan, and return the outcome."""
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
        if breaking:
            await asyncio.wait(breaking)
        self.trace.add("healed")
        cluster.heal()
        if plan.unavailable_ms is not None:
            await asyncio.sleep(CALM_S * plan.thin)
        stop.set()
        # A process may have begun its longest pause just before.
        longest_s = PAUSE_MEANS_MAX * PAUSES * plan.pause_s
        await self._within(working, END_S + longest_s, "the workload has not ended")
        await self._quiet()
        await self.workload.finish(cluster)
        return self._outcome()

    async def _until_enough(self, began_s: float) -> None:
        """Go on while the run has tested too little, for at most its planned duration again."""
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
            # Some faults take a while to begin or to end.
            ending.ok({"happened": "detail" in asked, "cut": "the run's end"})
        else:
            self.trace.add(f"mended: {fault.kind}", **detail)
            ending.ok({"happened": True})

    async def _within(self, task: asyncio.Future[None], seconds: float, problem: str) -> None:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        if done:
            task.result()
            return
        self.late.append(Violation("late", f"{problem} {seconds:g} s after the last fault ended"))
        task.cancel()
        await asyncio.wait((task,))

    async def _quiet(self) -> None:
        """Wait until storage has no late writes and every node serves."""
        deadline_s = self.loop.time() + QUIET_S
        cluster = self.cluster
        while cluster.table.still_to_come or len(cluster.up) < len(cluster.machines):
            if self.loop.time() > deadline_s:
                down = [machine.name for machine in cluster.machines if not machine.is_up]
                self.late.append(
                    Violation("late", f"not up {QUIET_S:g} s after the last fault ended: {down}")
                )
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
    """Return the unexpected errors; each is a defect."""
    return [
        Violation(
            "unexpected_error",
            f"at {line.time_s:.3f} s in {line.process or 'a client'}: {dict(line.fields)}",
        )
        for line in lines
        if line.event == UNEXPECTED
    ]


def leader_changes(lines: Iterable[TraceLine]) -> int:
    """Count the claims of topics by another process than the one before."""
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
