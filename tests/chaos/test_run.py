"""A run on a real cluster: faults happen, and the verdict is based on enough evidence."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cli import cli
from chaos.given_cluster import GivenTarget
from chaos.proxied_cluster import ChaosCluster
from chaos.run import Run, RunPlan
from chaos.run_folder import RunFolder
from chaos.standalone import Standalone
from chaos.target import Ability
from chaos.workloads import REAL

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase", "toxiproxy"),
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

FAULTS = ("kill", "pause", "partition", "session", "leaders", "clock-skew")
SEED = 2
"""This seed draws two windows with faults."""


@pytest.fixture(scope="module")
def fresh(cluster: ChaosCluster) -> ChaosCluster:
    """The cluster without topics, faults and mutants."""
    asyncio.run(cluster.renew())
    return cluster


async def test_a_cluster_under_six_faults_loses_no_message(
    fresh: ChaosCluster, tmp_path: Path
) -> None:
    plan = RunPlan(("log",), FAULTS, 24.0, SEED, window_s=(12.0, 12.0), together=(3, 3))
    folder = RunFolder(tmp_path / "run")
    said: list[str] = []
    run = Run(fresh, plan, folder, said.append)
    judged = await run.run()
    assert judged.outcome == "valid", (judged.violations, judged.unsure, said)
    told = json.loads((folder.folder / "verdict.json").read_text())
    assert told["verdict"] == "valid"
    assert set(told["faults"]) == set(FAULTS)
    assert "unavailable" not in told["not_judged"]
    kept = {file.name for file in (folder.folder / "001").iterdir()}
    assert kept == {"history.jsonl", "verdict.json", "rate.svg", "leaders.svg"}
    assert any("ok" in line and "writes" in line for line in said)
    # The run leaves it without faults.
    assert await fresh.links.spoilt() == {}
    assert all(fresh.is_running(node) for node in fresh.nodes)
    summed = CliRunner().invoke(cli, ["sum", str(tmp_path), "--json"])
    assert (summed.exit_code, json.loads(summed.stdout)["runs"]) == (0, 1)


async def test_a_given_cluster_is_judged_and_not_changed(fresh: ChaosCluster) -> None:
    """The workload uses only registers, and publishes nothing."""
    target = GivenTarget(fresh.urls)
    before = {node: fresh.member(node).pid for node in fresh.nodes}
    quick = replace(REAL, pause_s=0.02)
    plan = RunPlan(("metadata",), ("kill", "churn"), 6.0, 7, salt="given", scale=quick)
    said: list[str] = []
    judged = await Run(target, plan, None, said.append).run()
    assert not judged.violations
    assert judged.unsure == ["these faults did not happen: kill"], said
    assert judged.outcome == "unknown"
    assert judged.facts["nemeses"] == ["churn"]
    assert set(judged.figures.operations) >= {"cas ok", "cas fail", "get ok"}
    assert "unavailable" not in judged.not_judged
    assert "left out: kill" in said[0]
    assert before == {node: fresh.member(node).pid for node in fresh.nodes}


async def test_a_target_has_its_abilities(fresh: ChaosCluster) -> None:
    can = {Ability.KILL, Ability.PAUSE, Ability.LINKS, Ability.CLOCKS, Ability.ZOOKEEPER}
    assert fresh.abilities >= can | {Ability.OWN_ZOOKEEPER, Ability.SPARE}
    assert not fresh.abilities & fresh.missing.keys()
    view = fresh.own_view("broker-1")
    assert view is not None
    session = await fresh.expire_session("broker-1")
    assert session == int(view["zookeeper"]["session"], 16)
    await fresh.wipe_zookeeper()
    fresh.clocks.set("broker-2", 1)
    await fresh.links.cut(fresh.links.around("broker-3", "node-zookeeper"))
    await fresh.kill("broker-1")
    await fresh.pause("broker-2")
    done = " ".join(await fresh.mend())
    for what in ("broker-1 was started", "broker-2 was resumed", "clock of broker-2", "silence"):
        assert what in done
    assert fresh.clocks.offset_s("broker-2") == 0
    assert await fresh.links.spoilt() == {}


@pytest.mark.nightly
async def test_a_broker_whose_power_fails_loses_nothing(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    faults = ("power-cut", "torn-tail", "flipped-bit", "disk-full")
    plan = RunPlan(("log",), faults, 15.0, 1, window_s=(5.0, 5.0), together=(1, 1))
    said: list[str] = []
    with Standalone() as broker:
        judged = await Run(broker, plan, RunFolder(tmp_path / "run"), said.append).run()
    assert not judged.violations
    assert judged.unsure == ["these faults did not happen: disk-full"], said
    assert set(judged.facts["nemeses"]) == {"power-cut", "torn-tail", "flipped-bit"}
    # Without its own mount namespace it uses the machine's disk, which it must not fill.
    assert "left out: disk-full" in said[0]


@pytest.mark.nightly
@pytest.mark.parametrize("workload", ["transactions", "own-transactions"])
async def test_transactions_stay_whole_over_either_service_as_power_fails(
    tmp_path: Path, workload: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    plan = RunPlan((workload,), ("power-cut",), 20.0, 1, window_s=(5.0, 5.0), together=(1, 1))
    said: list[str] = []
    with Standalone() as broker:
        judged = await Run(broker, plan, RunFolder(tmp_path / "run"), said.append).run()
    assert judged.outcome == "valid", (judged.violations, judged.unsure, said)
    assert "power-cut" in judged.facts["nemeses"]
