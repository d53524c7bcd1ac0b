"""The control files of a running job, and the way from MODULE:NAME to a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import TaskFailed
from broker.streams.job_control import Control, folder_of, here
from broker.streams.job_run import load, missing


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "checkpoint" / "job")


@pytest.mark.parametrize("checkpoint", ["/a/b", "file:///a/b", "file:/a/b"])
def test_the_files_lie_beside_the_checkpoint(checkpoint: str) -> None:
    assert folder_of(checkpoint, None) == Path("/a/b/job")


@pytest.mark.parametrize("checkpoint", ["hdfs://name:9000/a", "s3a://bucket/a"])
def test_a_checkpoint_elsewhere_needs_a_folder_for_them(checkpoint: str) -> None:
    with pytest.raises(ValueError, match="--control DIR"):
        folder_of(checkpoint, None)
    assert folder_of(checkpoint, Path("here")) == Path("here/job")


@pytest.mark.slow
def test_only_one_process_runs_a_job(control: Control) -> None:
    assert not control.is_locked
    with control.locked():
        control.write_status({"job": "words", "state": "running", **here()})
        assert control.is_locked
        with (
            pytest.raises(TaskFailed, match="broker streams stop") as refused,
            Control(control.folder).locked(),
        ):
            pass
        assert f"process {here()['pid']}" in refused.value.message
    assert not control.is_locked
    with control.locked():
        assert control.is_locked


def test_a_stop_request_is_for_the_running_process(control: Control) -> None:
    with control.locked():
        assert not control.is_asked_to_stop
        control.ask_to_stop()
        assert control.is_asked_to_stop
    with control.locked():
        assert not control.is_asked_to_stop


def test_a_missing_status_is_an_error(control: Control) -> None:
    with pytest.raises(TaskFailed, match="has no status of a job"):
        control.read_status()


@pytest.mark.parametrize(
    ("told", "is_running", "state"),
    [
        ("running", True, "running"),
        ("starting", True, "starting"),
        ("running", False, "gone"),
        ("starting", False, "gone"),
        ("stopped", False, "stopped"),
        ("died", True, "died"),
    ],
)
def test_a_job_whose_process_is_not_there_is_gone(told: str, is_running: bool, state: str) -> None:
    assert Control.state_of({"state": told}, is_running=is_running) == state


def test_a_damaged_status_is_named(control: Control) -> None:
    control.folder.mkdir(parents=True)
    (control.folder / "status.json").write_text('{"job": "counting"}')
    with pytest.raises(TaskFailed, match=r"status.json is damaged"):
        control.read_status()


MODULE = """
from broker.streams import Json, StreamBuilder

def made():
    builder = StreamBuilder("made")
    builder.source("a/b", Json()).sink("a/c", Json())
    return builder.build()

class Jobs:
    inner = made()

job = made()
nothing = 5

def broken():
    raise RuntimeError("no settings")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "jobs_here.py").write_text(MODULE)
    (tmp_path / "jobs_wrong.py").write_text("import json\n\nimport no_such_thing\n")
    yield
    for name in ("jobs_here", "jobs_wrong"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["job", "made", "Jobs.inner"])
def test_a_job_or_a_function_that_returns_one_is_found(name: str) -> None:
    assert load(f"jobs_here:{name}").id == "made"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("jobs_here:jbo", "no jbo. Its jobs are: job."),
        ("jobs_nowhere:job", "there is no module jobs_nowhere in "),
        ("jobs_wrong:job", r"no_such_thing.*jobs_wrong.py, line 3"),
        ("jobs_here:nothing", "is not a job but has type int"),
        ("jobs_here:Jobs.outer", "has no Jobs.outer. Its jobs are: job."),
        ("jobs_here:broken", r"RuntimeError: no settings \(.*jobs_here.py, line 16\)"),
    ],
)
def test_an_error_says_where_to_look(target: str, message: str) -> None:
    with pytest.raises(TaskFailed, match=message):
        load(target)


def test_a_missing_package_is_reported_with_its_extra() -> None:
    found = missing(ModuleNotFoundError("No module named 'pyspark'", name="pyspark.errors"))
    assert "the package 'pyspark'" in found.message
    assert "pip install 'tms-broker[streams]'" in found.message
