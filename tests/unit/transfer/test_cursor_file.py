import errno
import json
import os
from pathlib import Path

import pytest

from broker import small_files as files
from broker.errors import TaskFailed
from broker.transfer import cursor_file
from broker.transfer.cursor_file import CursorLog, FileCursor
from tests.unit.cli.running import run

HERE = CursorLog("jobs/states", 2, ("http://127.0.0.1:8080", "http://b:8080"))
ID = bytes(range(20))


def test_a_cursor_names_its_topic_and_its_broker(tmp_path):
    file = tmp_path / "states.cursor"
    assert cursor_file.load_cursor(file) is None
    cursor_file.save_cursor(file, HERE, ID)
    assert json.loads(file.read_text()) == {
        "topic": "jobs/states",
        "generation": 2,
        "brokers": ["http://127.0.0.1:8080", "http://b:8080"],
        "after": ID.hex(),
    }
    assert cursor_file.load_cursor(file) == FileCursor(HERE, ID)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "log",
    [
        HERE,
        HERE._replace(brokers=("http://b:8080",)),
        HERE._replace(brokers=("http://c:1", "http://B:8080/")),
        HERE._replace(brokers=("http://localhost:8080",)),
    ],
)
def test_one_address_in_common_is_the_same_broker(tmp_path, log):
    cursor_file.check_log(tmp_path, HERE, log)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (HERE._replace(topic="jobs/others"), "belongs to jobs/states at http://127.0.0.1:8080"),
        (
            HERE._replace(brokers=("http://c:8080",)),
            "--url http://c:8080,http://127.0.0.1:8080,http://b:8080",
        ),
        (HERE._replace(brokers=("http://127.0.0.1:8081",)), "give all of them once"),
        (HERE._replace(generation=3), "generation 2, now 3"),
    ],
)
def test_the_cursor_of_another_log_is_refused_with_what_to_do(tmp_path, log, said):
    file = tmp_path / "states.cursor"
    with pytest.raises(TaskFailed) as refused:
        cursor_file.check_log(file, HERE, log)
    assert said in refused.value.message
    assert str(file) in refused.value.message


def test_an_endless_file_is_no_cursor():
    with pytest.raises(TaskFailed, match="/dev/zero is not a cursor file"):
        cursor_file.load_cursor(Path("/dev/zero"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b"[]",
        b"x" * 40,
        b"0" * 40 + b"\n",
        b'{"topic": "a/b", "brokers": 1}',
        b"7",
        b"[" * 100_000,
        b"9" * 5_000,
        b"\0" * (1 << 20) + b"\0",
    ],
)
def test_a_file_that_is_no_cursor_is_refused(tmp_path, content):
    file = tmp_path / "states.cursor"
    file.write_bytes(content)
    with pytest.raises(TaskFailed, match="not a cursor file"):
        cursor_file.load_cursor(file)


def test_a_full_disk_is_that_of_the_cursor_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=str(tmp_path / "c")):
        cursor_file.save_cursor(tmp_path / "c", HERE, ID)


def test_no_file_takes_the_place_of_a_pipe_or_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for file in (pipe, link):
        words = ("export", "a/b", str(file), "--force", "--format", "jsonl")
        code, _, told = run(capsys, *words, "--url", "http://127.0.0.1:1", "--deadline", "0.1")
        assert (code, "is no file" in told) == (2, True)
        with pytest.raises(TaskFailed, match="is no file"):
            files.write_json(file, {})
    assert pipe.is_fifo()
    assert link.is_symlink()
