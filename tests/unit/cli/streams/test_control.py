"""The files with which the CLI watches and stops a running job."""

from pathlib import Path

import click
import pytest

from broker.cli.streams.control import Control, folder_of, here, state_of


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
            pytest.raises(click.ClickException, match="broker streams stop") as refused,
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
    with pytest.raises(click.ClickException, match="has no status of a job"):
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
    with pytest.raises(click.ClickException, match=r"status.json is damaged"):
        control.read_status()
