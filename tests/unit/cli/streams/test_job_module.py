"""A job is loaded from a module, and errors name the place of the mistake."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from broker.cli.streams.job_module import load, missing

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
