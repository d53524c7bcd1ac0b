"""A run: workloads on a target during faults, then healing, final reads, and a verdict.

::

    prepare ─▶ run workloads ──────────────────────────────────▶ stop ─▶ finish ─▶ judge ─▶ save
                 │ windows of faults: begin … heal, begin … heal │
                 └ the history gets each fault, and whether it happened
                                                                 └ mend the target, while the workloads go on

This is one segment. A run has as many segments as its time allows. ``run_folder`` describes its results.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Final

from chaos import schedule
from chaos.checkers import UNAVAILABLE, Promises, check
from chaos.figures import FAULT, MENDING, figures_of
from chaos.history import Ending, History
from chaos.nemeses import GROUPS, NEMESES
from chaos.nemesis import FAILURES, Nemesis, Repeated
from chaos.progress_line import HistoryProgress
from chaos.promises import HEALING_S, UNAVAILABLE_S, promised
from chaos.run_folder import ACKNOWLEDGED_MIN, Judged, RunFolder, judge, together, write_verdict
from chaos.target import Target
from chaos.workloads import REAL, REGISTRY, Scale, Workload
from chaos.workloads.real import RealSurroundings

SEGMENT_S: Final = 300.0
WELL_S: Final = 2.0
"""How long the workloads go on after healing; longer while a topic is silent."""
ENDING_S: Final = 120.0
FINAL_S: Final = 300.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        workloads: Names in the registry; they run at the same time.
        nemeses: Names of the faults.
        seconds: How long the workloads run, over all segments.
        seed: The seed of all random choices of the run.
        segment_s: The length of a segment.
        window_s: The least and the greatest length of a window of faults.
        together: The least and the greatest number of faults at once.
        each_must_happen: If True, the verdict is unknown unless each fault happened, also if the target
            does not allow it; if False, one fault is enough.
        unavailable_s: How long a topic may be silent without a fault; 0: not judged.
        healing_s: How long after the end of a fault a silence does not count.
        salt: Added to the workloads' seed, so that they choose new names on a cluster where the same
            seed ran before.
        scale: The amount of work of the workloads.
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
        """Return the promises by which the run is judged."""
        return promised(self.unavailable_s, self.healing_s)

    def segments(self) -> list[float]:
        """Return the length of each segment."""
        count = max(1, round(self.seconds / self.segment_s))
        return [self.seconds / count] * count


def able(target: Target, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the nemeses that a target allows, and the reasons why it does not allow the others.

    Raises:
        KeyError: There is no nemesis of that name.
    """
    allowed, skipped = [], {}
    for name in names:
        lacking = sorted(NEMESES[name]().needs - target.abilities)
        if lacking:
            reason = target.missing.get(lacking[0], f"the target lacks {lacking[0].value!r}")
            skipped[name] = reason
        else:
            allowed.append(name)
    return allowed, skipped


@dataclass
class Run:
    """One run of a plan on a target.

    Args:
        target: The cluster; the run leaves it healed.
        plan: The plan of the run.
        folder: The folder for the results; None keeps nothing.
        say: Called with each line of progress.
        interrupted: The caller sets it to end the run early; the run judges the history so far.
    """

    target: Target
    plan: RunPlan
    folder: RunFolder | None = None
    say: Say = lambda _: None
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    history: History | None = field(default=None, init=False)
    """The history of the last segment. Only the folder has the earlier ones."""

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
            self.history = segment.history
            try:
                judged = await segment.run()
            finally:
                if self.folder is not None:
                    self.folder.save_history(number, segment.history)
            judged.facts = {**facts, "segment": number}
            parts.append(judged)
            if self.folder is not None:
                write_verdict(self.folder.segment(number), judged)
                self._draw(number, segment.history)
            self.say(f"segment {number}: {judged.outcome}")
        whole = together(parts, self.plan.nemeses if self.plan.each_must_happen else ())
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
            from chaos import plots  # noqa: PLC0415  The import is slow, and its package is optional.
        except ModuleNotFoundError as error:
            self.say(f"no plots: {error}")
            return
        plots.draw(history.events, self.folder.segment(number))


class Segment:
    """A part of a run, with its own topics, history and verdict."""

    def __init__(self, run: Run, number: int, seconds: float, nemeses: Sequence[str]) -> None:
        """Begin as the segment with this number; the first is 1."""
        self.history = History(time.monotonic_ns)
        self._run = run
        self._number = number
        self._seconds = seconds
        self._nemeses = nemeses
        self._chance = random.Random(f"{run.plan.seed}/{number}")
        self._progress = HistoryProgress(self.history, run.say)
        self._faults = 0
        self._unhealed: list[tuple[Nemesis, Ending, dict[str, Any]]] = []
        """Faults whose ``heal`` failed, with their evidence."""
        self._trouble: list[str] = []
        """The reasons why the history does not prove that the cluster is right."""

    async def run(self) -> Judged:
        """Run the workloads during faults, heal, read everything, and judge.

        An error of a workload, of a fault or of the target makes the verdict unsure; the history so far is judged.
        """
        plan, target = self._run.plan, self._run.target
        around = RealSurroundings(
            target.urls,
            seed=random.Random(f"{plan.seed}/{self._number}/{plan.salt}").getrandbits(32),
            scale=plan.scale,
            history=self.history,
            beneath=target.beneath,
            **target.client_settings,
        )
        workloads = [REGISTRY[name]() for name in plan.workloads]
        with self._noting("the workloads could not be prepared"):
            for workload in workloads:
                await workload.prepare(around)
        if self._trouble:
            return Judged(unsure=[*self._trouble, target.state()], not_judged=[UNAVAILABLE])
        stop = asyncio.Event()
        telling = asyncio.create_task(self._progress.tell())
        working = [asyncio.create_task(workload.run(around, stop)) for workload in workloads]
        began = time.monotonic()
        try:
            with self._noting("the faults ended early"):
                await self._play(working)
            worked_s = time.monotonic() - began
            is_mended = await self._mend()
            stop.set()
            await self._ended(working)
            if is_mended:  # A failed read from a broken cluster proves nothing.
                await self._finish(workloads, around)
        finally:
            stop.set()
            telling.cancel()
            for task in working:
                task.cancel()
            await asyncio.gather(*working, telling, return_exceptions=True)
        return self._judged(worked_s)

    def _judged(self, worked_s: float) -> Judged:
        judged, promises = Judged(not_judged=[UNAVAILABLE]), self._run.plan.promises
        with self._noting("the history could not be judged"):
            calls = self.history.calls()
            verdict = check(calls, promises)
            figures = figures_of(calls)
            figures.seconds = worked_s
            figures.silent_well_s = verdict.counts.get("longest_unavailable_ms", 0) / 1000
            judged = judge(figures, verdict, promises=promises)
        judged.unsure += self._trouble
        return judged

    @contextmanager
    def _noting(self, problem: str) -> Iterator[None]:
        """Catch an error, which makes the verdict unsure: the history so far is still judged."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - A violation in the history counts in spite of any error.
            self._note(problem, error)

    def _note(self, problem: str, error: BaseException) -> None:
        """Note an error that makes the verdict unsure; if no fault causes it, tell where it came from."""
        self._trouble.append(f"{problem}: {error!r}")
        self._run.say(self._trouble[-1])
        if not isinstance(error, FAILURES):
            self._run.say("".join(traceback.format_exception(error)))

    async def _play(self, working: Sequence[asyncio.Task[None]]) -> None:
        """Play the windows of faults, until the time is over or a workload ends by itself."""
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
            try:
                for done in await self._run.target.revive():
                    self._run.say(f"revived: {done}")
            except FAILURES as error:
                self._run.say(f"not revived: {error!r}")

    async def _begin(self, names: Sequence[str]) -> list[tuple[Nemesis, Ending]]:
        begun = []
        for name in names:
            nemesis = NEMESES[name]()
            asked: dict[str, Any] = {"kind": name}
            ending = self._fault(asked)
            try:
                asked["detail"] = dict(await nemesis.begin(self._run.target, self._chance))
            except Exception as error:  # noqa: BLE001 - As in ``_noting``.
                await self._give_up(nemesis, ending, error)
            else:
                begun.append((nemesis, ending))
        return begun

    def _fault(self, asked: dict[str, Any]) -> Ending:
        """Write that a fault begins, as a process of its own."""
        self._faults += 1
        return self.history.invoke(f"nemesis {self._faults} {asked['kind']}", FAULT, "", asked)

    async def _give_up(self, nemesis: Nemesis, ending: Ending, error: Exception) -> None:
        """Heal a fault whose ``begin`` failed, because a part of it may have begun."""
        evidence = self._no_evidence(nemesis, error)
        try:
            await nemesis.heal(self._run.target)
        except Exception:  # noqa: BLE001 - As in ``_noting``.
            self._unhealed.append((nemesis, ending, evidence))
        else:
            ending.ok(evidence)

    async def _heal(self, nemesis: Nemesis, ending: Ending) -> None:
        try:
            evidence = dict(await nemesis.heal(self._run.target))
        except Exception as error:  # noqa: BLE001 - As in ``_noting``.
            # The fault may last until the target is mended. There is no evidence that it happened.
            self._unhealed.append((nemesis, ending, self._no_evidence(nemesis, error)))
        else:
            ending.ok(evidence)

    def _no_evidence(self, nemesis: Nemesis, error: Exception) -> dict[str, Any]:
        """Return the evidence of a fault that failed; note an error that no fault causes."""
        if not isinstance(error, FAILURES):
            self._note(f"the fault {nemesis.name} failed", error)
        return {"happened": False, "why": repr(error)}

    async def _mend(self) -> bool:
        """Mend the target, and wait until the workloads make progress; return False if it stays broken."""
        mending, known = self._fault({"kind": MENDING}), len(self._trouble)
        with self._noting("the cluster could not be mended"):
            done = await self._run.target.mend()
        if len(self._trouble) > known:
            return False
        for action in done:
            self._run.say(f"mended: {action}")
        for nemesis, ending, evidence in self._unhealed:
            if isinstance(nemesis, Repeated):
                # The mended target may still have some of it, such as pins.
                with self._noting(f"{nemesis.name} could not be undone"):
                    await nemesis.undo(self._run.target)
            ending.ok(evidence)
        mending.ok({"happened": bool(done), "done": done})
        self._progress.mark()
        # A verdict needs this many acknowledged writes, also on a slow machine.
        wanted = max(self._progress.acknowledged + 1, ACKNOWLEDGED_MIN)
        deadline = time.monotonic() + ENDING_S
        while self._progress.acknowledged < wanted and time.monotonic() < deadline:
            await self._progress.look()
        await _until(self._run.interrupted, (), WELL_S)
        await self._until_all_are_back()
        return len(self._trouble) == known

    async def _until_all_are_back(self) -> None:
        """Wait until each silent topic acknowledges a request, or is silent long enough for a violation."""
        promises = self._run.plan.promises
        if promises.unavailable_ms is None:
            return
        deadline = time.monotonic() + (promises.healing_ms + promises.unavailable_ms) / 1000
        interrupted = self._run.interrupted
        while self._progress.silent and time.monotonic() < deadline and not interrupted.is_set():
            await self._progress.look()

    async def _ended(self, working: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the workloads to end."""
        done, late = await asyncio.wait(working, timeout=ENDING_S)
        for error in await asyncio.gather(*done, return_exceptions=True):
            if error is not None:
                self._note("a workload failed", error)
        if late:
            self._trouble.append(f"a workload did not end within {ENDING_S:g} s after the stop")

    async def _finish(self, workloads: Sequence[Workload], around: RealSurroundings) -> None:
        try:
            async with asyncio.timeout(FINAL_S):
                for workload in workloads:
                    with self._noting(f"the final reads of {workload.name} failed"):
                        await workload.finish(around)
        except TimeoutError:
            state = self._run.target.state()
            self._trouble.append(f"the final reads took longer than {FINAL_S:g} s; {state}")


async def _until(
    interrupted: asyncio.Event, working: Sequence[asyncio.Task[None]], seconds: float
) -> None:
    """Wait for some seconds; return early after an interrupt, or when a workload has ended."""
    waiting = asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait(
            (waiting, *working), timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        waiting.cancel()
