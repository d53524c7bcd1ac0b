"""A cluster that the verifier did not start, with faults by its owner's commands, as a user does it."""

import json
import select
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.local import pids

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.nightly,
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180
SESSION_S = 2
SECONDS = 12
SEED = 3
"""This seed draws one window with both faults."""

Process = dict[str, Any]


@contextmanager
def cluster(folder: Path) -> Iterator[list[Process]]:
    """Start a cluster by its command, yield the processes that it lists, and end it by a signal."""
    words = ["--nodes", "2", "--ports", "free", "--dir", str(folder), "--json"]
    words += ["--set", f"cluster.session_timeout_ms={SESSION_S * 1000}"]
    with subprocess.Popen(
        [sys.executable, "-m", "broker.cli", "cluster", "up", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        try:
            assert launcher.stdout is not None
            assert select.select([launcher.stdout], [], [], DEADLINE_S)[0], "it does not start"
            yield json.loads(launcher.stdout.readline())["processes"]
        finally:
            launcher.terminate()
            assert launcher.wait(DEADLINE_S) == 0


def start_script(node: Process, folder: Path) -> Path:
    """Write a script that restarts a node, from the command and variables that the cluster lists."""
    variables = (f"{name}={shlex.quote(value)}" for name, value in node["env"].items())
    command = " ".join(["env", *variables, shlex.join(node["command"])])
    script = folder / f"start-{node['name']}.sh"
    script.write_text(f"cd {shlex.quote(node['cwd'])}\n{command} &\n")
    return script


def chaos(*words: str) -> dict[str, Any]:
    """Run the verifier; return its verdict, which must be valid."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "run", *words, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def test_nodes_of_a_given_cluster_are_killed_and_paused_by_its_owners_commands(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cluster"
    with cluster(folder) as processes:
        nodes = [process for process in processes if process["kind"] == "broker"]
        scripts = [start_script(node, tmp_path) for node in nodes]
        assert [script.name for script in scripts] == ["start-broker-1.sh", "start-broker-2.sh"]
        pid = f"$(cat {folder}/pids/broker-{{node}}.pid)"
        verdict = chaos(
            *("--target", ",".join(node["url"] for node in nodes)),
            *("--nemesis", "kill,pause", "--together", "2", "--seed", str(SEED)),
            *("--minutes", str(SECONDS / 60), "--session-s", str(SESSION_S / 2)),
            *("--kill-cmd", f"sh -c 'kill -KILL {pid}'"),
            *("--start-cmd", f"sh {tmp_path}/start-broker-{{node}}.sh"),
            *("--pause-cmd", f"sh -c 'kill -STOP {pid}'"),
            *("--resume-cmd", f"sh -c 'kill -CONT {pid}'"),
            *("--dir", str(tmp_path / "run")),
        )
        assert verdict["left_out"] == {}
        assert {name for name, fault in verdict["faults"].items() if fault["happened"]} == {
            "kill",
            "pause",
        }
        assert "unavailable" not in verdict["not_judged"]
        # All processes run, and at least one node was restarted.
        now = pids.live(folder)
        assert set(now) == {process["name"] for process in processes}
        assert {node["name"] for node in nodes if now[node["name"]] != node["pid"]} != set()
        assert all(pids.kernel_state(now[node["name"]]) != "T" for node in nodes)
    assert pids.live(folder) == {}
    assert (tmp_path / "run" / "001" / "history.jsonl").exists()
