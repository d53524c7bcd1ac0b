from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from broker.bench import overview
from broker.bench.overview import ClusterSnapshot, NodeRow, TopicRow
from broker.cli.command.output import size_text
from broker.cli.nodes import top
from broker.client import Settings
from broker.errors import NotFound, Overloaded, TopicNotFound, Unavailable
from broker.model import TopicId


def stats(rate: float, messages: int = 1) -> dict[str, Any]:
    return {
        "rates": {"publish_per_s": rate, "poll_per_s": 0.0},
        "messages": {"value": messages, "estimate": True},
        "bytes": {"value": 1_500, "estimate": False},
        "last": None,
    }


class Broker:
    """A stub of a client that answers with the given topics and status."""

    def __init__(self, topics: dict[str, Any], status: Any) -> None:
        self.settings = Settings(url="http://a:1,http://b:2")
        self._topics = topics
        self._status = status
        self.asked: list[str] = []

    async def namespaces(self) -> list[str]:
        return ["ns", "other"]

    async def topics(self, namespace: str) -> list[str]:
        return list(self._topics) if namespace == "ns" else []

    async def stats(self, topic: TopicId) -> dict[str, Any]:
        self.asked.append(topic.topic)
        return told(self._topics[topic.topic])

    async def ask(self, _: Any) -> Any:
        return told(self._status)


def told(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


ALONE = NotFound("no cluster")


async def taken(broker: Any, rows_max: int = 50, namespace: str | None = None) -> ClusterSnapshot:
    return await overview.take(broker, namespace, rows_max)


async def test_the_busiest_topics_come_first_and_those_with_a_problem_before_them() -> None:
    broker = Broker(
        {
            "idle": stats(0),
            "busy": stats(5.5),
            "gone": TopicNotFound("deleted meanwhile"),
            "silent": Overloaded("too much"),
            "large": stats(0, 9),
        },
        ALONE,
    )
    found = await taken(broker)
    assert [row.topic for row in found.topics] == ["ns/silent", "ns/busy", "ns/large", "ns/idle"]
    assert found.topics[0].problem == "overloaded: too much"
    assert (await taken(broker, rows_max=2)).topics == found.topics[:2]
    assert (await taken(broker, namespace="other")).topics == []
    assert [(row.url, row.state) for row in found.nodes] == [
        ("http://a:1", "serving"),
        ("http://b:2", "serving"),
    ]


async def test_the_number_of_topics_that_are_asked_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "ASKED_MAX", 3)
    broker = Broker({f"t{n}": stats(n) for n in range(10)}, ALONE)
    found = await taken(broker, rows_max=2)
    assert (len(broker.asked), found.topics_there, found.topics_asked) == (3, 10, 3)
    assert top.remark(found).startswith(
        "10 topics; figures only of the first 3 by name; the busiest 2 are shown."
    )


async def test_a_node_that_does_not_answer_is_shown_beside_the_others() -> None:
    rows = [
        {
            "url": "http://a:1",
            "state": "serving",
            "node": 0,
            "problem": None,
            "view": {"topics_led": 7, "uptime_s": 61.5},
        },
        {"url": "http://b:2", "state": "silent", "node": 1, "problem": "timed out", "view": None},
    ]
    found = await taken(Broker({}, {"nodes": rows}))
    assert [top.node_cells(row) for row in found.nodes] == [
        ["0", "http://a:1", "serving", "7", "0:01:01", ""],
        ["1", "http://b:2", "silent", "", "", "timed out"],
    ]


async def test_topics_are_shown_without_a_status_of_nodes() -> None:
    found = await taken(Broker({"t": stats(1)}, Unavailable("no answer")))
    assert [(row.state, row.problem) for row in found.nodes] == [("silent", "no answer")] * 2
    assert [row.topic for row in found.topics] == ["ns/t"]


def test_the_cells_of_a_topic() -> None:
    row = TopicRow("ns/t", 1.25, 0, 1_234, 1_500, True, "2026-01-31T12:00:00.000Z")
    assert top.topic_cells(row) == [
        "ns/t",
        "1.2",
        "0.0",
        "~1,234",
        "~1.5 kB",
        "2026-01-31T12:00:00.000Z",
    ]
    assert top.topic_cells(TopicRow("ns/t", problem="why"))[-1] == "why"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (10**9, "1.0 GB"), (10**18, "1000.0 PB")],
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert size_text(size) == text


def test_names_and_errors_of_others_are_no_markup_and_no_escapes() -> None:
    hostile = "[/red] [bold]\x1b[2J\nforged"
    found = ClusterSnapshot(
        [NodeRow(hostile, hostile, problem=hostile)], [TopicRow("a/b", problem=hostile)], 1, 1
    )
    shown = io.StringIO()
    Console(file=shown, width=300).print(top.tables(found, hostile))
    assert shown.getvalue().count(r"[/red] [bold]\x1b[2J\nforged") == 5
