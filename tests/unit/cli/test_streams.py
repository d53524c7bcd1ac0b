"""The files with which the CLI watches and stops a running job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from broker.cli.streams import job_status as job_table
from broker.cli.streams.job_run import load, missing
from broker.cli.streams.job_status import Control, folder_of, here, state_of
from broker.errors import TaskFailed
from broker.streams.state_view import StateEntry


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "checkpoint" / "job")


@pytest.mark.parametrize("checkpoint", ["/a/b", "file:///a/b", "file:/a/b"])
def test_the_files_lie_beside_the_checkpoint(checkpoint: str) -> None:
    assert folder_of(checkpoint, None) == Path("/a/b/job")


@pytest.mark.parametrize("checkpoint", ["hdfs://name:9000/a", "s3a://bucket/a"])
def test_a_checkpoint_elsewhere_needs_a_folder_for_them(checkpoint: str) -> None:
    with pytest.raises(click.UsageError, match="--control DIR"):
        folder_of(checkpoint, None)
    assert folder_of(checkpoint, Path("here")) == Path("here/job")


@pytest.mark.slow
def test_only_one_process_runs_a_job(control: Control) -> None:
    assert not control.is_held
    with control.held():
        control.write_status({"job": "words", "state": "running", **here()})
        assert control.is_held
        with (
            pytest.raises(TaskFailed, match="broker streams stop") as refused,
            Control(control.folder).held(),
        ):
            pass
        assert f"process {here()['pid']}" in refused.value.message
    assert not control.is_held
    with control.held():
        assert control.is_held


def test_a_stop_request_is_for_the_running_process(control: Control) -> None:
    with control.held():
        assert not control.is_asked_to_stop
        control.ask_to_stop()
        assert control.is_asked_to_stop
    with control.held():
        assert not control.is_asked_to_stop


def test_a_missing_status_is_an_error(control: Control) -> None:
    with pytest.raises(TaskFailed, match="has no status of a job"):
        control.read_status()


@pytest.mark.parametrize(
    ("told", "is_held", "state"),
    [
        ("running", True, "running"),
        ("starting", True, "starting"),
        ("running", False, "gone"),
        ("starting", False, "gone"),
        ("stopped", False, "stopped"),
        ("died", True, "died"),
    ],
)
def test_a_job_whose_process_is_not_there_is_gone(told: str, is_held: bool, state: str) -> None:
    assert state_of({"state": told}, is_held=is_held) == state


def test_a_damaged_status_is_named(control: Control) -> None:
    control.folder.mkdir(parents=True)
    (control.folder / "status.json").write_text('{"job": "counting"}')
    with pytest.raises(TaskFailed, match=r"status.json is damaged"):
        control.read_status()


QUERY = {
    "name": "sink-1",
    "is_running": True,
    "error": None,
    "batch": 7,
    "read_per_s": 1200.0,
    "published_per_s": 30.5,
    "lag_s": 0.25,
    "watermark": "2026-01-01T00:00:00.000Z",
    "late": 1,
    "skipped": 2,
    "state_rows": 1000,
    "state_bytes": 2500,
}
NEW = {**QUERY, "name": "sink-2", "batch": None, "lag_s": None, "watermark": None}


def told(state: str, *queries: dict[str, Any], **more: Any) -> dict[str, Any]:
    known = {"job": "words", "state": state, "pid": 5, "host": "here", "told_ms": 1_000}
    return {**known, "error": None, "queries": list(queries), **more}


def test_a_line_has_all_ends_together() -> None:
    assert job_table.line(told("running", QUERY, NEW)) == (
        "words running  batch 7  read 2,400/s  published 61/s  lag 0.2 s  late 2  skipped 4  state 5.0 kB"
    )
    assert "no batch yet" in job_table.line(told("starting"))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("running", "words is running: process 5 on here, status 3 s old"),
        ("stopped", "words stopped 3 s ago (process 5 on here)"),
        ("gone", "process 5 on here does not exist any more; its last status is 3 s old"),
        ("died", "the job words died (sink-1): why"),
    ],
)
def test_the_head_says_how_a_job_ended(state: str, said: str) -> None:
    assert said in job_table.head(told(state, error="the job words died (sink-1): why"), 4_500)


def test_each_end_has_a_row() -> None:
    dead = {**NEW, "error": "why", "is_running": False}
    rows = job_table.rows(told("running", QUERY, dead))
    assert [len(row) for row in rows] == [len(job_table.HEADS)] * 2
    assert [row[:3] for row in rows] == [("sink-1", "runs", "7"), ("sink-2", "died", "")]
    [row] = job_table.rows(told("gone", QUERY))
    assert row[1] == "does not run"


def test_state_is_a_row_for_each_entry() -> None:
    window = {"start": "2026-01-01T00:00:00.000Z", "end": "2026-01-01T01:00:00.000Z"}
    rows = job_table.state_rows(
        [
            StateEntry("count-1", "a", None, {"count": 2}),
            StateEntry("join-1", ["a", 1], window, [1]),
        ]
    )
    assert rows == [
        ("count-1", "a", "", "count=2"),
        ("join-1", '["a", 1]', "2026-01-01T00:00:00.000Z to 2026-01-01T01:00:00.000Z", "[1]"),
    ]


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
        ("jobs_here", "MODULE:NAME"),
        (":job", "MODULE:NAME"),
        ("jobs_here:jbo", "no jbo. Its jobs are: job."),
        ("jobs_nowhere:job", "there is no module jobs_nowhere in "),
        ("jobs_wrong:job", r"no_such_thing.*jobs_wrong.py, line 3"),
        ("jobs_here:nothing", "is not a job but has type int"),
        ("jobs_here:Jobs.outer", "has no Jobs.outer. Its jobs are: job."),
        ("jobs_here:broken", r"RuntimeError: no settings \(.*jobs_here.py, line 16\)"),
    ],
)
def test_an_error_says_where_to_look(target: str, message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        load(target)


def test_a_missing_package_is_reported_with_its_extra() -> None:
    found = missing(ModuleNotFoundError("No module named 'pyspark'", name="pyspark.errors"))
    assert "the package 'pyspark'" in found.message
    assert "pip install 'tms-broker[streams]'" in found.message


@pytest.mark.slow
def test_other_commands_need_neither_spark_nor_stream_jobs() -> None:
    program = "import sys, broker.cli.app; print({'pyspark', 'broker.streams'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
