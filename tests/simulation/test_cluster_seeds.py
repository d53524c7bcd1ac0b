"""Seeds of the whole cluster in one process: runs of three virtual minutes without a violation, which repeat exactly.

Every run of the tests uses a few new seeds. The nightly run uses a hundred seeds, always the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from broker.testing import Cluster, simulated
from tests.kit.seeds import run
from tests.kit.seeds.__main__ import WORKLOADS, run_one, run_several
from tests.kit.seeds.faults import KINDS
from tests.kit.seeds.plan import Plan, draw_plan
from tests.kit.seeds.report import Totals
from tests.kit.seeds.run import simulate

SEEDS = 100
SEEDS_DRAWN = 5
MINUTES = 3.0
MISBEHAVIOUR = {"late_writes", "lies", "lost_answers", "old_falses", "old_rows", "partial", "short"}
"""The faults of storage that must happen in the nightly seeds, by the adversary's names."""


WEIGHTS = {name: kind.weight for name, kind in KINDS.items()}


def planned(seed: int) -> Plan:
    return draw_plan(seed, minutes=MINUTES, workloads=WORKLOADS, kinds=WEIGHTS)


def judge(plans: list[Plan]) -> None:
    enough = 0
    for plan in plans:
        summary = run_one(plan)
        assert not summary.report, f"{summary.line}\n{summary.report}"
        enough += summary.is_enough
    # A seed may test too little by chance, but most seeds test enough.
    assert enough > len(plans) // 2


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_of_today_shows_a_violation(drawn_seed: int) -> None:
    judge([planned(seed) for seed in range(drawn_seed, drawn_seed + SEEDS_DRAWN)])


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_of_today_shows_a_violation_with_one_node(drawn_seed: int) -> None:
    seeds = range(drawn_seed, drawn_seed + len(WORKLOADS))
    judge([replace(planned(seed), nodes=1) for seed in seeds])


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(1500)  # Less than two minutes on two idle cores.
def test_no_fixed_seed_shows_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [planned(seed) for seed in range(1, SEEDS + 1)]
    totals = Totals()
    wrong = []
    for summary in run_several(plans, jobs=2):
        totals.add(summary.totals)
        if summary.report or not summary.is_enough:
            wrong.append(f"{summary.line}\n{summary.report}")
    with capsys.disabled():
        print("\n" + "\n".join(totals.lines()))  # noqa: T201 - For the log of the nightly run.
    assert not wrong, "\n\n".join(wrong[:3])
    assert totals.seconds >= SEEDS * MINUTES * 60
    assert totals.faults.keys() >= {name for name, weight in WEIGHTS.items() if weight.weight > 0}
    assert totals.happened.keys() >= MISBEHAVIOUR
    assert totals.available >= SEEDS // 2, "availability was judged in too few runs"


@pytest.mark.simulation
@pytest.mark.timeout(300)
def test_a_seed_repeats_its_history_in_every_process() -> None:
    def history(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.kit.seeds", "--seed", "2"]
        command += ["--minutes", "1"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=250
        )
        (digest,) = re.findall(r"history ([0-9a-f]{64})", done.stdout)
        return str(digest)

    assert history("1") == history("2")


@pytest.mark.simulation
@pytest.mark.timeout(300)
def test_the_command_runs_seeds_in_several_processes() -> None:
    command = [sys.executable, "-m", "tests.kit.seeds"]
    command += ["--seeds", "2", "--minutes", "0.1", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert "2 seeds, 0 bad, 2 empty" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1, "seeds that test too little count as failed"


@pytest.mark.simulation
def test_an_unexpected_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise ValueError("an unexpected error")

    monkeypatch.setattr("broker.topics.topic_reader.oldest_live", fails)
    assert "unexpected_error" in simulate(Plan(seed=1, minutes=0.1)).verdict.names


@pytest.mark.simulation
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_read_of_expired_messages_is_found(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "broker.topics.topic_reader.oldest_live", lambda topic, now_ms, lifetime_ms=None: bytes(10)
    )
    plan = Plan(seed=2, minutes=1.0, workload="topics", nodes=nodes)
    assert "expired_late" in simulate(plan).verdict.names


@pytest.mark.simulation
def test_a_workload_that_does_not_end_in_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(Plan(seed=1, minutes=0.1)).verdict.is_valid
    monkeypatch.setattr(run, "END_S", -1000.0)
    assert simulate(Plan(seed=1, minutes=0.1)).verdict.names == {"late"}


@pytest.mark.simulation
def test_publishers_and_consumers_go_on_when_the_leader_dies() -> None:
    @simulated(seed=3)
    async def scenario() -> list[bytes]:
        async with Cluster(nodes=3) as cluster:
            client, consumer = cluster.client(), cluster.client()
            await client.create_topic("log")
            seen: list[bytes] = []

            async def tail() -> None:
                async for message in consumer.tail("log"):
                    seen.append(message.payload)
                    if len(seen) == 20:
                        return

            tailing = asyncio.ensure_future(tail())
            for number in range(20):
                if number == 10:
                    cluster.kill(await cluster.leader("log"))
                await client.publish("log", str(number), idempotency_key=f"key-{number}")
            await asyncio.wait_for(tailing, 60)
            return seen

    assert scenario() == [str(number).encode() for number in range(20)]
