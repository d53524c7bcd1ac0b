"""``broker top`` against a whole broker, also in a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from broker.cli import app
from broker.cli.command import broker_calls as calls
from broker.client import SyncClient
from tests.kit.served import ServedNode

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode() as node:
        with SyncClient(node.url) as client:
            client.create_topic("top/idle")
            client.create_topic("top/busy")
            client.publish("top/busy", ["a", "b"])
        yield node


def test_one_refresh_as_json_and_as_text(
    node: ServedNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", node.url)
    with pytest.raises(SystemExit) as left:
        app.run(["top", "--json"])
    told = json.loads(capfd.readouterr().out)
    assert left.value.code == 0
    assert [topic["topic"] for topic in told["topics"]] == ["top/busy", "top/idle"]
    assert told["topics"][0]["messages"] == 2
    assert told["nodes"][0]["url"] == node.url
    with pytest.raises(SystemExit) as left:
        app.run(["top", "--namespace", "top", "-n", "1"])  # No terminal: one refresh.
    shown = capfd.readouterr().out
    assert left.value.code == 0
    assert "top/busy" in shown
    assert "top/idle" not in shown


def test_without_a_broker_it_says_so(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(calls, "SOON_S", 0.0)
    with pytest.raises(SystemExit) as left:
        app.run(["top", "--once", "--deadline", "0.2"])
    assert left.value.code == 4
    said = capfd.readouterr().err
    assert said.startswith("broker: can't reach http://127.0.0.1:1"), "it says at once why it waits"
    assert "Tried http://127.0.0.1:1" in said


def test_in_a_terminal_it_follows_until_it_is_interrupted(node: ServedNode) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "broker.cli", "top", "--interval", "0.2"],
        env={**os.environ, "BROKER_URL": node.url, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        wait_for(ours, b"top/busy")
        with SyncClient(node.url) as client:
            client.create_topic("top/new")
            client.publish("top/new", ["x"] * 5)
        wait_for(ours, b"top/new")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    os.close(ours)


def wait_for(terminal: int, text: bytes) -> None:
    """Read a terminal's output until it has a text."""
    deadline, seen = time.monotonic() + DEADLINE_S, b""
    while text not in seen:
        left_s = deadline - time.monotonic()
        assert left_s > 0, f"no {text!r} in {seen!r}"
        if select.select([terminal], [], [], left_s)[0]:
            seen += os.read(terminal, 65_536)
