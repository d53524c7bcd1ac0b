"""Play a case: renew the cluster, with or without a mutant, run the case, and judge its history."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from broker.local.servers import ServerFailed
from broker.testing import mutants
from chaos.cases.case import Case, CaseTarget, Played
from chaos.cases.harness import Scene
from chaos.checkers import check
from chaos.nemesis import FAILURES
from chaos.promises import PROMISES
from chaos.proxied_cluster import ChaosCluster

CASE_S: Final = 120.0


async def play(
    case: Case,
    cluster: ChaosCluster | None,
    *,
    mutant: str = "",
    keep: Path | None = None,
) -> Played:
    """Play a case.

    Args:
        case: The case.
        cluster: A running cluster, if the case needs one; this function renews it.
        mutant: The mutant to put in force; "" for none.
        keep: A folder for its history.

    A case that fails or takes too long is judged by its history so far, and is never valid.
    """
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"case-{case.name}-"))
    played = Played(case, mutant)
    is_here = case.where is CaseTarget.INSIDE and mutant
    try:
        scene = await _scene(case, folder, cluster, mutant)
        with mutants.in_force(mutant) if is_here else nullcontext():
            try:
                async with asyncio.timeout(CASE_S):
                    await case.play(scene)
            except FAILURES as error:
                # A cluster with a mutant may fail in any way. The history so far is judged.
                scene.evidence["ended_by"] = repr(error)
        _judge(scene, played)
        if keep is not None:
            await asyncio.to_thread(_save, scene, keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    played.seconds = time.monotonic() - began
    return played


async def _scene(case: Case, folder: Path, cluster: ChaosCluster | None, mutant: str) -> Scene:
    if case.where is not CaseTarget.CLUSTER:
        return Scene(folder, mutant, None)
    assert cluster is not None, f"{case.name} is played on a cluster"
    try:
        await cluster.renew({"logs.log_format": "json", **case.settings}, mutant=mutant)
    except ServerFailed:
        # On a busy machine, a node may lose its session while it starts, and exit. A supervisor would
        # start it again.
        await cluster.mend()
    return Scene(folder, mutant, cluster)


def _save(scene: Scene, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scene.history.save(folder / "history.jsonl")


def _judge(scene: Scene, played: Played) -> None:
    calls = scene.history.calls()
    verdict = check(calls, PROMISES)
    asked = any(call.op != "fault" for call in calls)
    played.violations = [*scene.violations, *verdict.violations]
    played.is_known = (verdict.is_known or not asked) and "ended_by" not in scene.evidence
    played.not_judged = list(verdict.unjudged)
    played.faults, played.evidence = scene.faults, scene.evidence
