"""The texts of a job's status, and the arguments of its commands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from broker.cli.streams import status_text as job_table
from broker.streams.state_view import StateEntry
from tests.unit.cli.running import run

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


@pytest.mark.parametrize("target", ["jobs_here", ":job"])
def test_a_target_is_a_module_and_a_name(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = run(capsys, "streams", "explain", target)
    assert (code, "is not MODULE:NAME" in told) == (2, True), told


@pytest.mark.parametrize("checkpoint", ["hdfs://name:9000/a", "s3a://bucket/a"])
def test_a_checkpoint_elsewhere_is_a_wrong_usage(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = run(capsys, "streams", "status", checkpoint)
    assert (code, "--control DIR" in told) == (2, True), told


@pytest.mark.slow
def test_other_commands_need_neither_spark_nor_stream_jobs() -> None:
    program = "import sys, broker.cli.app; print({'pyspark', 'broker.streams'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
