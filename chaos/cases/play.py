"""Playing a case: the cluster made new, the guard taken away and said to be away, the history judged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from broker import guards
from broker.testing.checkers import check
from broker.testing.servers import ServerFailed
from broker.testing.servers.process import ASK_TIMEOUT_S
from chaos.cases.case import Case, Played, Where
from chaos.cases.harness import Scene
from chaos.cluster import ChaosCluster
from chaos.nemesis import FAILURES
from chaos.promises import PROMISES

CASE_S: Final = 120.0
_TESTING: Final = "BROKER_TESTING"


async def play(
    case: Case,
    cluster: ChaosCluster | None,
    *,
    without: str | None = None,
    keep: Path | None = None,
) -> Played:
    """Play a case.

    Args:
        case: Which.
        cluster: A running one, if the case is played on one; it is made new.
        without: The guard to take away.
        keep: A folder for its history.

    A case that does not come to its end, in time or at all, is judged by what there is, and never valid.
    """
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"case-{case.name}-"))
    played = Played(case, without)
    try:
        scene = await _scene(case, folder, cluster, without)
        with ExitStack() as held:
            if case.where is Where.INSIDE and without is not None:
                held.enter_context(_taken_away(without))
            try:
                async with asyncio.timeout(CASE_S):
                    await case.play(scene)
            except FAILURES as error:
                # What was done so far is in the history; without its guard a cluster may do anything.
                scene.evidence["ended_by"] = repr(error)
        _judge(scene, played)
        if keep is not None:
            await asyncio.to_thread(_save, scene, keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    played.seconds = time.monotonic() - began
    return played


async def _scene(
    case: Case, folder: Path, cluster: ChaosCluster | None, without: str | None
) -> Scene:
    if case.where is not Where.CLUSTER:
        return Scene(folder, without, None)
    assert cluster is not None, f"{case.name} is played on a cluster"
    off = [] if without is None else [without]
    seen = {node: len(cluster.member(node).log()) for node in cluster.nodes}
    try:
        await cluster.renew({"logs.log_format": "json", **case.settings}, without_guards=off)
    except ServerFailed:
        # On a busy machine a node may lose its session while it starts, and end: a supervisor would
        # start it again.
        await cluster.mend()
    scene = Scene(folder, without, cluster)
    for node in cluster.nodes:
        told = await asyncio.to_thread(_guards_of, cluster, node)
        for place in told:
            await scene.see_guards(
                node,
                place,
                lambda node=node: scene.log_of(node, seen[node]),  # type: ignore[misc]
            )
    return scene


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


@contextmanager
def _taken_away(guard: str) -> Iterator[None]:
    """Take a guard away in this process."""
    before = os.environ.get(_TESTING)
    os.environ[_TESTING] = "1"
    try:
        with guards.without(guard):
            yield
    finally:
        if before is None:
            del os.environ[_TESTING]
        else:
            os.environ[_TESTING] = before


def _guards_of(cluster: ChaosCluster, node: str) -> list[list[str]]:
    """Return which guards a node lacks, by its status and by its health."""
    view = cluster.own_view(node)
    assert view is not None, f"{node} says nothing of itself"
    place = cluster.member(node).place
    connection = HTTPConnection(place.host, place.port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        return [view["guards_off"], json.loads(connection.getresponse().read())["guards_off"]]
    finally:
        connection.close()
