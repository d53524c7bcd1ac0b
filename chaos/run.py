"""A run: a workload on a target while faults come and go, then healed, read to its end, and judged.

::

    prepare ─▶ run workloads ──────────────────────────────────▶ stop ─▶ finish ─▶ judge ─▶ save
                 │ windows of faults: begin … heal, begin … heal │
                 └ each tells the history when, what, and whether it happened
                                                                 └ mend: everything is well, and work goes on

That is a segment; a run is as many as fit into its time. What comes of it is in ``store``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Final

from broker.client import BrokerError
from broker.local.servers import ServerFailed
from chaos import schedule
from chaos.checkers import UNAVAILABLE, Promises, check
from chaos.figures import FAULT, MENDING, figures_of
from chaos.history import Ending, History
from chaos.nemeses import GROUPS, NEMESES
from chaos.nemesis import FAILURES, Nemesis
from chaos.progress_line import HistoryProgress
from chaos.promises import HEALING_S, UNAVAILABLE_S, promised
from chaos.run_folder import ACKNOWLEDGED_MIN, Judged, RunFolder, judge, together, write_verdict
from chaos.target import Target
from chaos.workloads import REAL, REGISTRY, Scale, Workload
from chaos.workloads.real import RealStage

SEGMENT_S: Final = 300.0
WELL_S: Final = 2.0
"""How long a healed cluster is worked on before the work stops; longer while a topic is silent."""
ENDING_S: Final = 120.0
FINAL_S: Final = 300.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run does.

    Attributes:
        workloads: Names in the registry; they run at the same time.
        nemeses: Names of the faults.
        seconds: How long the workloads run, over all segments.
        seed: Of all that is up to chance here.
        segment_s: How long a segment is.
        window_s: The least and the greatest length of a window of faults.
        together: The least and the greatest number of faults at once.
        each_must_happen: Whether a fault that did not happen makes the verdict unknown; if not, one
            of them is enough.
        unavailable_s: How long a topic may acknowledge nothing while nothing is broken; 0: not judged.
        healing_s: For how long after a fault was healed that does not count.
        salt: What lets workloads draw other names on a cluster that has seen the same seed before.
        scale: How much the workloads do.
    """

    workloads: Sequence[str]
    nemeses: Sequence[str]
    seconds: float
    seed: int
    _: KW_ONLY
    segment_s: float = SEGMENT_S
    window_s: tuple[float, float] = schedule.WINDOW_S
    together: tuple[int, int] = schedule.TOGETHER
    each_must_happen: bool = True
    unavailable_s: float = UNAVAILABLE_S
    healing_s: float = HEALING_S
    salt: str = ""
    scale: Scale = REAL

    @property
    def promises(self) -> Promises:
        """What is promised of the cluster."""
        return promised(self.unavailable_s, self.healing_s)

    def segments(self) -> list[float]:
        """Return the length of each segment."""
        count = max(1, round(self.seconds / self.segment_s))
        return [self.seconds / count] * count


def able(target: Target, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the nemeses that a target allows, and why it does not allow the others.

    Raises:
        KeyError: There is no nemesis of that name.
    """
    allowed, skipped = [], {}
    for name in names:
        lacking = sorted(NEMESES[name]().needs - target.abilities)
        if lacking:
            why = target.missing.get(lacking[0], f"it can't be had: {lacking[0].value}")
            skipped[name] = why
        else:
            allowed.append(name)
    return allowed, skipped


@dataclass
class Run:
    """One run of a plan on a target.

    Args:
        target: The cluster; it is left healed.
        plan: What to do.
        folder: Where it is kept; None keeps nothing.
        say: Gets a line now and then.
        interrupted: Set by whoever wants the run to come to its end now; what there is, is judged.
    """

    target: Target
    plan: RunPlan
    folder: RunFolder | None = None
    say: Say = lambda _: None
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    history: History | None = field(default=None, init=False)
    """Of the segment that ended last; those before are kept in the folder alone."""

    async def run(self) -> Judged:
        """Run all segments and return the verdict on all of them."""
        allowed, skipped = able(self.target, self.plan.nemeses)
        for name, why in skipped.items():
            self.say(f"left out: {name}: {why}")
        facts = {
            "workloads": list(self.plan.workloads),
            "nemeses": allowed,
            "left_out": skipped,
            "seed": self.plan.seed,
            "promises": asdict(self.plan.promises),
        }
        parts = []
        for number, seconds in enumerate(self.plan.segments(), 1):
            if self.interrupted.is_set():
                break
            segment = Segment(self, number, seconds, allowed)
            judged = await segment.run()
            judged.facts = {**facts, "segment": number}
            parts.append(judged)
            self.history = segment.history
            if self.folder is not None:
                self.folder.save_segment(number, segment.history, judged)
                self._draw(number, segment.history)
            self.say(f"segment {number}: {judged.outcome}")
        whole = together(parts, allowed if self.plan.each_must_happen else ())
        happened = sum(whole.figures.happened.values())
        if self.plan.nemeses and not happened:
            whole.unsure.append("no fault happened")
        whole.facts = {**facts, "segments": [part.outcome for part in parts]}
        if self.folder is not None:
            write_verdict(self.folder.folder, whole)
        return whole

    def _draw(self, number: int, history: History) -> None:
        assert self.folder is not None
        try:
            from chaos import plots  # noqa: PLC0415  It takes a second, and may be missing.
        except ModuleNotFoundError as error:
            self.say(f"no plots: {error}")
            return
        plots.draw(history.events, self.folder.segment(number))


class Segment:
    """A part of a run, which stands by itself."""

    def __init__(self, run: Run, number: int, seconds: float, nemeses: Sequence[str]) -> None:
        """Be the ``number``-th, the first being 1."""
        self.history = History(time.monotonic_ns)
        self._run = run
        self._number = number
        self._seconds = seconds
        self._nemeses = nemeses
        self._chance = random.Random(f"{run.plan.seed}/{number}")
        self._progress = HistoryProgress(self.history, run.say)
        self._faults = 0
        self._unhealed: list[tuple[Ending, dict[str, Any]]] = []
        """Faults whose end failed, and what is known of them."""

    async def run(self) -> Judged:
        """Work, break, heal, read everything, judge."""
        plan, target = self._run.plan, self._run.target
        stage = RealStage(
            target.urls,
            seed=random.Random(f"{plan.seed}/{self._number}/{plan.salt}").getrandbits(32),
            scale=plan.scale,
            history=self.history,
            beneath=target.beneath,
        )
        workloads = [REGISTRY[name]() for name in plan.workloads]
        try:
            for workload in workloads:
                await workload.prepare(stage)
        except (BrokerError, ServerFailed) as error:
            why = f"there was no beginning: {error!r}; {target.state()}"
            return Judged(unsure=[why], not_judged=[UNAVAILABLE])
        stop = asyncio.Event()
        telling = asyncio.create_task(self._progress.tell())
        working = [asyncio.create_task(workload.run(stage, stop)) for workload in workloads]
        began = time.monotonic()
        trouble: list[str] = []
        try:
            await self._play(working)
            worked_s = time.monotonic() - began
            trouble += await self._well()
            stop.set()
            is_well = not trouble
            trouble += await _ended(working)
            if is_well:  # What can't be read from a cluster that is not well says nothing.
                trouble += await self._finish(workloads, stage)
        finally:
            stop.set()
            telling.cancel()
            for task in working:
                task.cancel()
            await asyncio.gather(*working, telling, return_exceptions=True)
        calls = self.history.calls()
        verdict = check(calls, plan.promises)
        figures = figures_of(calls)
        figures.seconds = worked_s
        figures.silent_well_s = verdict.counts.get("longest_unavailable_ms", 0) / 1000
        judged = judge(figures, verdict, promises=plan.promises)
        judged.unsure += trouble
        return judged

    async def _play(self, working: Sequence[asyncio.Task[None]]) -> None:
        """Let windows of faults come and go, until the time is over or the work ends by itself."""
        plan = self._run.plan
        drawn = schedule.windows(
            self._nemeses,
            self._seconds,
            self._chance,
            window_s=plan.window_s,
            together=plan.together,
            groups=GROUPS,
            each=plan.each_must_happen,
        )
        began = time.monotonic()
        for window in drawn:
            if self._run.interrupted.is_set() or any(task.done() for task in working):
                return
            begun = await self._begin(window.faults)
            self._progress.faults = window.faults
            left_s = began + window.ends_s - time.monotonic()
            await _until(self._run.interrupted, working, left_s)
            await asyncio.gather(*(self._heal(*one) for one in begun))
            self._progress.faults = ()
            for done in await self._run.target.revive():
                self._run.say(f"revived: {done}")

    async def _begin(self, names: Sequence[str]) -> list[tuple[Nemesis, Ending]]:
        begun = []
        for name in names:
            nemesis = NEMESES[name]()
            asked: dict[str, Any] = {"kind": name}
            ending = self._fault(asked)
            try:
                asked["detail"] = dict(await nemesis.begin(self._run.target, self._chance))
            except FAILURES as error:
                await self._give_up(nemesis, ending, error)
            else:
                begun.append((nemesis, ending))
        return begun

    def _fault(self, asked: dict[str, Any]) -> Ending:
        """Write that a fault begins, in the name of a process that nothing else has."""
        self._faults += 1
        return self.history.invoke(f"nemesis {self._faults} {asked['kind']}", FAULT, "", asked)

    async def _give_up(self, nemesis: Nemesis, ending: Ending, error: BaseException) -> None:
        """Take back what has begun of a fault that could not be begun."""
        evidence = {"happened": False, "why": repr(error)}
        try:
            await nemesis.heal(self._run.target)
        except FAILURES:
            self._unhealed.append((ending, evidence))
        else:
            ending.ok(evidence)

    async def _heal(self, nemesis: Nemesis, ending: Ending) -> None:
        try:
            evidence = dict(await nemesis.heal(self._run.target))
        except FAILURES as error:
            # What it leaves behind lasts until all is mended; that it was there is not known.
            self._unhealed.append((ending, {"happened": False, "why": repr(error)}))
        else:
            ending.ok(evidence)

    async def _well(self) -> list[str]:
        """Heal what is left, and see that work goes on; return what does not."""
        mending = self._fault({"kind": MENDING})
        try:
            done = await self._run.target.mend()
        except FAILURES as error:
            self._run.say(f"the cluster did not get well: {error!r}")
            return [f"the cluster did not get well: {error!r}"]
        for what in done:
            self._run.say(f"mended: {what}")
        for ending, evidence in self._unhealed:
            ending.ok(evidence)
        mending.ok({"happened": bool(done), "done": done})
        self._progress.mark()
        # However slow the machine is: enough to say something.
        wanted = max(self._progress.acknowledged + 1, ACKNOWLEDGED_MIN)
        deadline = time.monotonic() + ENDING_S
        while self._progress.acknowledged < wanted and time.monotonic() < deadline:
            await self._progress.look()
        await _until(self._run.interrupted, (), WELL_S)
        await self._until_all_are_back()
        return []

    async def _until_all_are_back(self) -> None:
        """Wait for topics that acknowledge nothing, for so long that the checkers find them."""
        promises = self._run.plan.promises
        if promises.unavailable_ms is None:
            return
        deadline = time.monotonic() + (promises.healing_ms + promises.unavailable_ms) / 1000
        interrupted = self._run.interrupted
        while self._progress.silent and time.monotonic() < deadline and not interrupted.is_set():
            await self._progress.look()

    async def _finish(self, workloads: Sequence[Workload], stage: RealStage) -> list[str]:
        try:
            async with asyncio.timeout(FINAL_S):
                for workload in workloads:
                    await workload.finish(stage)
        except TimeoutError:
            return [f"the final reads took longer than {FINAL_S:g} s; {self._run.target.state()}"]
        return []


async def _until(
    interrupted: asyncio.Event, working: Sequence[asyncio.Task[None]], seconds: float
) -> None:
    """Return after some time, or as soon as there is nothing to wait for."""
    waiting = asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait(
            (waiting, *working), timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        waiting.cancel()


async def _ended(working: Sequence[asyncio.Task[None]]) -> list[str]:
    """Wait for the work to end; return what went wrong with it. Raises what a workload raised."""
    done, late = await asyncio.wait(working, timeout=ENDING_S)
    for task in done:
        task.result()
    return [f"a workload had not ended {ENDING_S:g} s after it was asked to"] if late else []
