"""How the measurements of a cluster judge their figures, without a cluster."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from benchmarks import machine
from benchmarks.cluster import pauses, publishes, rates, report, threads
from benchmarks.cluster.ground import longest_gap_s, names_led_by, summed
from benchmarks.figures import Question, Run, Series, compare
from broker.coordination.assignment import Assignment
from broker.model import TopicId


def test_a_gap_around_the_begin_of_a_change_counts_whole() -> None:
    assert longest_gap_s([0.0, 1.0, 4.0, 5.0], began=2.0, ended=4.5) == 3.0


def test_a_gap_around_the_end_of_a_change_counts_whole() -> None:
    assert longest_gap_s([0.0, 1.0, 2.0, 9.0], began=0.5, ended=3.0) == 7.0


def test_a_gap_before_the_change_does_not_count() -> None:
    assert longest_gap_s([0.0, 7.0, 8.0, 8.5, 20.0], began=7.5, ended=8.2) == 1.0
    assert longest_gap_s([], began=0.0, ended=1.0) == 0.0


def test_the_assignment_gives_the_names_to_the_node() -> None:
    names = names_led_by("t", 20, 1, [0, 1, 2])
    assert len(set(names)) == 20
    assigned = Assignment([0, 1, 2])
    assert {assigned.leader_of(TopicId("default", name)) for name in names} == {1}


def test_a_counter_is_summed_over_its_own_labels() -> None:
    text = (
        "# TYPE broker_storage_calls_total counter\n"
        'broker_storage_calls_total{kind="put",code="ok"} 3\n'
        'broker_storage_calls_total{kind="get",code="cut"} 2.0\n'
        'broker_storage_calls_total_of_others{kind="get"} 70\n'
    )
    assert summed(text, "broker_storage_calls_total") == 5.0


def series(name: str, p50_ms: float, *, apart: str = "") -> Series:
    return Series(name=name, unit="msg/s", runs=[Run(value=9.0, p50_ms=p50_ms, apart=apart)] * 5)


@pytest.mark.parametrize(("p50_ms", "verdict"), [(2.9, "met"), (3.1, "missed")])
def test_a_nodes_latency_is_judged_by_its_excess_over_a_bare_commit(
    p50_ms: float, verdict: str
) -> None:
    ratio = rates.p50_above(series("node", p50_ms), series("bare", 2.0), must_ms=1.0)
    assert ratio.verdict == verdict
    assert ratio.value == pytest.approx(p50_ms - 2.0)


def test_pauses_do_not_count_while_other_programs_use_the_processors() -> None:
    sets = pauses.Sets(3)
    sets.add([0.1, 0.2], "")
    sets.add([0.9], "others used 0.50 cores")
    assert not sets.are_enough
    assert sets.judged == ([0.1, 0.2, 0.9], "others used 0.50 cores")
    sets.add([0.3], "")
    assert sets.are_enough
    assert sets.judged == ([0.1, 0.2, 0.3], "")


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nwhy?"


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[publishes.Sender]:
    """Give a sender to a server that answers each request with these pieces, and then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The random payloads of the body contain no empty line.
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        sender = await asyncio.to_thread(
            publishes.Sender, server.sockets[0].getsockname()[1], "topic", 1
        )
        try:
            yield sender
        finally:
            sender.close()


async def test_an_answer_may_arrive_in_pieces() -> None:
    async with answering(ANSWER[:20], ANSWER[20:]) as sender:
        await asyncio.to_thread(sender.publish)


@pytest.mark.parametrize("pieces", [[REFUSAL], [ANSWER[:20]], [], [ANSWER.replace(b"0", b"3")]])
async def test_an_answer_that_is_no_acknowledgement_ends_the_run(pieces: list[bytes]) -> None:
    async with answering(*pieces) as sender:
        with pytest.raises(RuntimeError, match="not the answer"):
            await asyncio.to_thread(sender.publish)


def test_latencies_beside_other_programs_are_no_result() -> None:
    ratio = rates.p50_above(series("node", 9.0, apart="others"), series("bare", 2.0), must_ms=1.0)
    assert (ratio.verdict, ratio.value) == ("no result", None)


@pytest.mark.parametrize(
    ("longest_s", "apart", "verdict"),
    [(0.1, "", "met"), (0.1, "others", "met"), (0.2, "", "missed"), (0.2, "others", "no result")],
)
def test_other_programs_excuse_a_long_pause_and_do_not_spoil_a_short_one(
    longest_s: float, apart: str, verdict: str
) -> None:
    question = Question(letter="i", title="pauses")
    pauses.judge(question, "handoff", [0.01] * 5 + [longest_s], 150.0, apart, part=0.99)
    assert question.ratios[0].verdict == verdict
    assert question.series[0].median == pytest.approx(longest_s * 1e3)


def test_the_page_has_the_bare_commits_beside_each_figure() -> None:
    question = Question(letter="g", title="publishes through a node")
    question.series += [series("node", 3.0), series("bare", 2.0)]
    question.ratios.append(compare(*question.series, must=0.6))
    bare = {"alone": 321.0, "p50": 2.5, "batched": 12_345.0}
    raw: list[dict[str, Any]] = [{"per_second": 4000.0}]
    found = {**machine.described(), "quick": True, "raw_sync": raw}
    page = report.as_markdown({**found, "questions": [question.as_json() | {"bare": bare}]})
    for piece in ("321 a second", "12,345 messages", "4,000 times", ">= 0.6: met", "quick"):
        assert piece in page


def test_each_thread_works_once_untimed_and_then_for_the_given_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = [0, 0]

    def once(which: int) -> None:
        done[which] += 1

    threads.measure([partial(once, 0), partial(once, 1)], messages=10, seconds=0.2)
    told = json.loads(capsys.readouterr().out)
    timed = len(told["latencies_ns"])
    assert told["messages"] == 10 * timed
    # In each thread the first call is not timed, and a last call may end too late.
    assert sum(done) - 2 * len(done) <= timed <= sum(done) - len(done)


def test_a_failing_thread_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    answers = iter([None])
    with pytest.raises(SystemExit):
        threads.measure([lambda: next(answers), lambda: None], messages=1, seconds=0.5)
