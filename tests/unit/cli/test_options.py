import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from broker.cli.command.options import place_of
from broker.cli.messages.publish import publish
from broker.client import Published
from broker.errors import OutcomeUnknown, TopicNotFound
from broker.moments import time_text, whole_s
from broker.transfer.lines import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, batches
from tests.unit.cli.running import run

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("now", NOW_MS),
        ("30s", NOW_MS - 30_000),
        ("10m", NOW_MS - 600_000),
        ("1h", NOW_MS - 3_600_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("2d", NOW_MS - 172_800_000),
        ("1w", NOW_MS - 604_800_000),
        ("99999w", 0),
        ("1769860800000", 1_769_860_800_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800_000),
        ("2026-01-31", 1_769_817_600_000),
        ("2026-01-31T12:00:00.0001Z", 1_769_860_800_001),
        ("1969-12-31", 0),
        ("00" * 19 + "Ff", bytes(19) + b"\xff"),
    ],
)
def test_a_place_is_an_age_a_time_or_an_id(text, place):
    assert place_of(text, NOW_MS) == place


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86_400), ("2w", 1_209_600)],
)
def test_a_duration_is_seconds_or_has_a_unit(text, seconds):
    assert whole_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "0.5s", "1y", "1 d", "9" * 20, "9" * 400 + "d", "²"]
)
def test_a_bad_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"not a duration|not a whole number|too long"):
        whole_s(text)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "1y", "h", "-1h", "00" * 19, "0x10", "9" * 400 + "d"]
)
def test_a_bad_place_is_refused_with_the_valid_forms(text):
    with pytest.raises(ValueError, match="neither a duration"):
        place_of(text, NOW_MS)


def test_seconds_are_not_taken_for_milliseconds():
    with pytest.raises(ValueError, match=r"looks like seconds since 1970. Give ms: 1769860800000"):
        place_of("1769860800", NOW_MS)


@given(st.integers(10**10, 4_000_000_000_000))
@example(1_084_819_160_870)  # As seconds in a float, it is less.
def test_a_time_is_read_as_it_is_written(time_ms):
    assert place_of(time_text(time_ms), 0) == time_ms


def test_a_time_beyond_the_calendar_is_written_as_a_number():
    assert time_text((1 << 63) - 1) == str((1 << 63) - 1)


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"") + b"\n")))
def test_batches_hold_every_line_in_order(lines):
    assert [m + b"\n" for batch in batches(lines) for m in batch] == lines


def test_batches_are_bounded_and_always_cut_in_the_same_way():
    lines = [b"x" * 999 + b"\n"] * 2500
    sizes = [len(batch) for batch in batches(lines)]
    assert sizes == [1000, 1000, 500]
    assert max(sizes) <= BATCH_MESSAGES_MAX
    large = [b"x" * (BATCH_BYTES_MAX // 2) + b"\n"] * 5
    assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert [len(batch) for batch in batches([b"x" * (2 * BATCH_BYTES_MAX)] * 2)] == [1, 1]


def test_a_last_line_without_an_end_counts():
    assert list(batches([b"a\n", b"\n", b"b"])) == [[b"a", b"", b"b"]]


class FailsAfter:
    """A client whose publishes fail after the first ``count``."""

    def __init__(self, count, error):
        self.count, self.error = count, error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def publish(self, topic, batch, **_):
        self.count -= 1
        if self.count < 0:
            raise self.error
        return Published()


@pytest.mark.parametrize(
    ("requests", "error", "told"),
    [
        (
            0,
            TopicNotFound("No."),
            "No line was published before; the outcome of lines 1 to 1,000 is",
        ),
        (
            2,
            OutcomeUnknown("Lost."),
            "Lines 1 to 2,000 are published; the outcome of lines 2,001 to 2,500 is",
        ),
    ],
)
def test_a_failed_request_reports_which_lines_are_published(requests, error, told, monkeypatch):
    monkeypatch.setattr(
        "broker.cli.command.broker_calls.BrokerCall.client", lambda *_: FailsAfter(requests, error)
    )
    done = CliRunner().invoke(publish, ["a/b", "--lines", "-"], input=b"line\n" * 2500)
    assert done.exception is error
    assert error.__notes__ == [f"{told}: {error.outcome}."]


@pytest.mark.parametrize(
    ("short", "told", "code"),
    [(0, "No line was published", 1), (2_000, "Lines 1 to 1,000 are published", 3)],
)
def test_a_line_that_no_message_can_be_is_refused_before_it_is_read(
    short, told, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("broker.transfer.lines.MESSAGE_BYTES_MAX", 100)
    monkeypatch.setattr(
        "broker.cli.command.broker_calls.BrokerCall.client", lambda *_: FailsAfter(9, None)
    )
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * short + b"x" * 100_000 + b"\n")
    ended, _, err = run(capsys, "publish", "a/b", "--lines", str(file))
    assert ended == code, err
    assert f"line {short + 1:,}: it has more than 100 bytes" in err
    assert told in err
