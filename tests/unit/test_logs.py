import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from broker import logs
from broker.config.sections import LogFormat, LogLevel, LogsConfig

CLOSE_DEADLINE_S = 10.0


@contextmanager
def into(file: Path, **keys) -> Iterator[logs.LogSink]:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with logs.writing(LogsConfig(**keys), descriptor) as sink:
            yield sink
            assert sink.close(CLOSE_DEADLINE_S)
    finally:
        os.close(descriptor)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_json_line_has_event_level_time_and_fields(file: Path) -> None:
    with into(file, log_format=LogFormat.JSON):
        logs.get_logger(node="a").info("topic claimed", epoch=3, key=b"\x00")
    line = json.loads(file.read_text())
    assert line["event"] == "topic claimed"
    assert (line["level"], line["node"], line["epoch"], line["key"]) == ("info", "a", 3, "b'\\x00'")
    assert line["time"].endswith("Z")


def test_auto_is_json_if_the_output_is_no_terminal(file: Path) -> None:
    with into(file):
        logs.get_logger().info("x")
    assert json.loads(file.read_text())["event"] == "x"


def test_a_console_line_is_for_people(file: Path) -> None:
    with into(file, log_format=LogFormat.CONSOLE):
        logs.get_logger().warning("disk full", free_bytes=0)
    assert "disk full" in file.read_text()
    assert "free_bytes=0" in file.read_text()


def test_a_level_below_is_not_written(file: Path) -> None:
    with into(file, log_level=LogLevel.WARNING):
        logs.get_logger().info("quiet")
        logs.get_logger().error("loud")
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["loud"]


def test_the_standard_librarys_warnings_are_lines_too(file: Path) -> None:
    with into(file):
        logging.getLogger("some.library").warning("odd %s", "thing")
        logging.getLogger("some.library").info("chatter")
    line = json.loads(file.read_text())
    assert (line["event"], line["library"], line["level"]) == (
        "odd thing",
        "some.library",
        "warning",
    )


def test_a_bad_record_of_a_library_raises_no_error(file: Path) -> None:
    with into(file):
        # The test calls the broker's handler directly: pytest's handler raises on such records.
        handlers = logging.getLogger().handlers
        (handler,) = (each for each in handlers if type(each).__module__ == logs.__name__)
        handler.emit(logging.makeLogRecord({"levelno": 30, "msg": "%s %s", "args": "x"}))
        logging.getLogger("some.library").log(35, "100 %")
    first, second = file.read_text().splitlines()
    assert "could not be written" in first
    assert json.loads(second)["event"] == "100 %"


def test_an_exception_is_one_line(file: Path) -> None:
    with into(file):
        try:
            {}["k"]
        except KeyError:
            logs.get_logger().exception("failed")
    line = json.loads(file.read_text())
    assert "KeyError: 'k'" in line["exception"]


def test_a_value_whose_repr_fails_raises_no_error(file: Path) -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with into(file):
        logs.get_logger().info("x", value=Nasty())
    assert "could not be written" in file.read_text()


def fill(descriptor: int) -> int:
    """Write to a pipe until it is full; return the number of written bytes."""
    os.set_blocking(descriptor, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(descriptor, bytes(4096))
    os.set_blocking(descriptor, True)
    return filled


def test_a_stuck_reader_blocks_no_writer_and_dropped_lines_are_counted_and_reported() -> None:
    reading, writing = os.pipe()
    filled = fill(writing)
    sink = logs.LogSink(writing, lines_max=10)
    line = "x" * 8192
    for _ in range(500):
        sink.write(line)
    assert (
        sink.dropped >= 480
    )  # The thread holds at most 64 KiB, which are 8 lines, and 10 lines wait.
    assert not sink.close(deadline_s=0)

    received: list[bytes] = []

    def read() -> None:
        while part := os.read(reading, 65_536):
            received.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    assert sink.close(CLOSE_DEADLINE_S), "the sink did not end after the reader came back"
    os.close(writing)
    sink.release()
    reader.join(CLOSE_DEADLINE_S)
    os.close(reading)
    text = b"".join(received)[filled:].decode()
    # If the thread takes a batch while the test still writes lines, it reports drops twice.
    told = re.findall(r"log lines dropped lines=(\d+)\n", text)
    assert sum(map(int, told)) == sink.dropped
    assert text.count(line + "\n") == 500 - sink.dropped


def test_a_closed_sink_drops_and_counts() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = logs.LogSink(writing, lines_max=10)
    sink.write("a")
    assert sink.close(CLOSE_DEADLINE_S)
    os.close(writing)
    assert sink.dropped == 1


def test_a_full_device_drops_and_counts() -> None:
    with Path("/dev/full").open("wb") as full:
        sink = logs.LogSink(full.fileno(), lines_max=10)
        sink.write("a")
        sink.write("b")
        assert sink.close(CLOSE_DEADLINE_S)
    assert sink.dropped == 2


def test_a_descriptor_closed_from_the_start_blocks_no_writer() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    sink = logs.LogSink(writing, lines_max=10)
    sink.write("a")
    assert sink.close(CLOSE_DEADLINE_S)
    assert sink.dropped == 1


def test_a_descriptor_whose_number_is_given_to_another_file_is_not_written_to(file: Path) -> None:
    reading, writing = os.pipe()
    sink = logs.LogSink(writing, lines_max=10)
    other = os.open(file, os.O_WRONLY | os.O_CREAT)
    os.dup2(other, writing)
    os.close(other)
    sink.write("a")
    assert sink.close(CLOSE_DEADLINE_S)
    os.close(writing)
    os.close(reading)
    assert file.read_text() == ""


def test_a_nonblocking_descriptor_gets_every_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    sink = logs.LogSink(writing, lines_max=1000)
    for number in range(200):
        sink.write(f"{number} " + "x" * 1000)
    received: list[bytes] = []
    while b"199 x" not in b"".join(received[-3:]):
        received.append(os.read(reading, 65_536))
    assert sink.close(CLOSE_DEADLINE_S)
    assert sink.dropped == 0
    os.close(reading)
    os.close(writing)


def test_a_test_can_take_lines_instead_of_writing_them(file: Path) -> None:
    taken: list[tuple[str, dict[str, object]]] = []
    with into(file):
        with logs.taken(lambda event, fields: taken.append((event, dict(fields)))):
            logs.get_logger(node=7).info("topic claimed", epoch=3)
        logs.get_logger().info("written again")
    assert taken == [("topic claimed", {"node": 7, "epoch": 3})]
    assert "topic claimed" not in file.read_text()
    assert "written again" in file.read_text()


class Hostile:
    def __repr__(self) -> str:
        return "\x1b[2J"


def test_text_of_others_can_neither_forge_a_console_line_nor_reach_the_terminal(file: Path) -> None:
    hostile = "\x1b[2J\nok\u202e\x9b"
    with into(file, log_format=LogFormat.CONSOLE):
        log = logs.get_logger(node=hostile)
        event = f"told {hostile}"
        log.warning(event, topic=hostile, short="\x1b", value=Hostile(), plain="a/b")
        log.error("failed", exc_info=ValueError(hostile))
        logging.getLogger("some.library").warning("told %s", hostile)
    text = file.read_text()
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text) is None
    assert "plain=a/b" in text
    first, second, *_, last = text.splitlines()
    assert r"told \x1b[2J\nok\u202e\x9b" in first
    assert "failed" in second
    assert r"told \x1b[2J\nok" in last


def test_text_of_others_is_escaped_in_a_json_line(file: Path) -> None:
    with into(file, log_format=LogFormat.JSON):
        logs.get_logger().warning("x\x1b\n", topic="\u202e\x7f\ud800", value=Hostile())
    (line,) = file.read_bytes().splitlines()
    assert line.isascii()
    assert not set(line) & {*range(32), 127}
    assert json.loads(line)["topic"] == "\u202e\x7f\ud800"


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
def test_no_line_has_a_secret(file: Path, form: LogFormat) -> None:
    canary = "canary-4f9c"
    with into(file, log_format=form):
        log = logs.get_logger(authorization=f"Bearer {canary}")
        log.info("asked", headers={"Authorization": f"Bearer {canary}"}, token=canary)
        log.info(
            "asked", pairs=[("cookie", canary)], url=f"http://me:{canary}@h:1/x?token={canary}&n=1"
        )
        try:
            int(f"Authorization: Basic {canary}")
        except ValueError:
            log.exception("failed")
        logging.getLogger("library").warning("sent %r", {"authorization": canary})
    text = file.read_text()
    assert canary not in text
    assert text.count("***") >= 7
    assert "n=1" in text
