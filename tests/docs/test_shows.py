"""The demonstrations of the scripts tell why they fail, and leave no process behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo, pipeline

DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
signal.pause()
"""
"""A program that ignores the request to end."""


def test_a_job_that_dies_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.py").write_text("import signal; signal.pause()")
    (tmp_path / "counts.py").write_text("raise SystemExit('there is no Java')")
    monkeypatch.setattr(pipeline, "PROGRAMS", tmp_path)
    monkeypatch.setattr(pipeline, "WAIT_S", 20.0)
    broker = demo.Broker(tmp_path)
    try:
        with pytest.raises(demo.DemoError, match=r"(?s)counts\.py ended:.*there is no Java"):
            pipeline.show(tmp_path, broker)
    finally:
        broker.kill()


def test_a_job_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    monkeypatch.setattr(pipeline, "PROGRAMS", tmp_path)
    monkeypatch.setattr(pipeline, "STOP_S", 0.1)
    with pipeline.running("deaf", tmp_path, {}) as process:
        while "deaf" not in (tmp_path / "deaf.log").read_text():
            pass
    assert process.poll() is not None


def test_a_broker_that_does_not_stop_is_killed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker.log").write_text("why it is deaf")
    monkeypatch.setattr(demo, "STOP_S", 0.1)
    broker = demo.Broker(tmp_path)
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == "deaf\n"
    broker.process = deaf
    with pytest.raises(demo.DemoError, match="why it is deaf"):
        broker.stop()
    assert deaf.poll() is not None


def test_an_input_that_the_broker_refuses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"x" * 20_000)
    monkeypatch.setenv("INPUT", str(file))
    monkeypatch.setenv("BROKER_LIMITS__BODY_BYTES_MAX", "10000")
    assert demo.run(demo.Broker(tmp_path), stays=False) == 1
    assert capsys.readouterr().err.startswith("demo: ")
