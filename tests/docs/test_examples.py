"""Every example runs against a whole broker, and prints its expected lines."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import SyncClient
from tests.kit.served import ServedNode

FOLDER = Path(__file__).parents[2] / "examples"
SAYS = {
    "configuration_changes": ["now in force: {'threads': '8', 'stop': 'yes'}"],
    "control_messages": ["container 0: stop", "container 2: stop", "all containers have stopped"],
    "event_triggers": [
        "while the job is at work: 0 events",
        "start the report for partition 2026-01-31",
        "a failed job: undone True, 0 events more",
    ],
    "lineage": ["importer -> raw -> cleaner", "cleaner -> clean -> report"],
    "metadata_changes": ["applied 2 changes: ['daily', 'pii']", "applied 1 more: ['pii']"],
    "order_outbox": [
        "the relay died: {'examples/orders': 3}",
        "order 1 was placed\norder 2 was placed\norder 3 was placed\nleft: {}",
    ],
    "own_triggers": [
        "the handler died, and starts again\nreact to order 2\nreact to order 3",
        "events behind: 0",
    ],
    "program_states": ["4 reports: {'run-1': 'completed', 'run-2': 'starting'}"],
    "user_notifications": ["to alice: Maintenance at noon.", "after the newest: []"],
}


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode() as node:
        yield node


def test_every_example_is_listed() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs_and_deletes_its_topics(name: str, node: ServedNode) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        env={**os.environ, "BROKER_URL": node.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for said in SAYS[name]:
        assert said in done.stdout
    with SyncClient(node.url) as client:
        assert client.topics("examples") == []


def test_lilys_repository_keeps_links_and_an_index() -> None:
    command = (sys.executable, "-m", "examples.rowlog")
    done = subprocess.run(command, cwd=FOLDER.parent, check=True, capture_output=True, text=True)
    for said in (
        "linked from, at once: ['lily', 'rowlog']",
        "after a change: ['lily']",
        "search for 'queue': ['rowlog']",
        "search for 'rows': ['hbase']",
    ):
        assert said in done.stdout
