"""The commands about a cluster, against the real handlers; a stub client calls them in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import pytest

from broker.cli import app
from broker.cli.command.output import live_line
from broker.cli.nodes import leadership
from broker.cli.nodes.cluster import storage_text
from broker.client import outcomes
from broker.client.client_request import ClientRequest, Reply
from broker.clock import SystemClock
from broker.coordination.placement import drain, pin, read_placement
from broker.coordination.ports import Contact
from broker.model import TopicId
from broker.operations.parameters import TOPICS_NAMED_MAX
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.testing.memory import MemoryRecords
from tests.kit.members import FewNodes
from tests.kit.serving import Broker, topic_path

T = TopicId("default", "t")
UPTIME = re.compile(r"\d:\d\d:\d\d")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Short:
    """A client whose requests are answered in this process; the answers about leaders come from a list."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.few = FewNodes(MemoryRecords(), SystemClock())
        store = Logs(MemoryTable(), self.few.clock)
        self.broker = Broker(stores=(store, self.few.records), cluster=self.few.view())
        self.leaders: list[dict[str, Any]] = []
        self.asked = 0
        self.before_each: Callable[[], None] = lambda: None
        self.loop.run_until_complete(self.broker.call("PUT", topic_path("t")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: ClientRequest) -> Any:
        self.asked += 1
        self.before_each()
        if request.path.endswith("/leader"):
            return self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        reply = self.loop.run_until_complete(
            self.broker.call(request.method, request.path, request.body, request.headers)
        )
        if reply.status != 200:
            headers = {name.lower(): value for name, value in reply.headers.items()}
            raise outcomes.error_of(request, Reply(reply.status, headers, reply.body))
        return reply.json

    def close(self) -> None:
        self.loop.run_until_complete(self.broker.close())
        self.loop.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Short]:
    client = Short()
    monkeypatch.setattr("broker.cli.command.broker_calls.BrokerCall.client", lambda *_: client)
    monkeypatch.setattr(leadership, "LOOK_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "220")
    yield client
    client.close()


@pytest.fixture
def run(short: Short, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def command(*words: str) -> Done:
        with pytest.raises(SystemExit) as left:
            app.run(["cluster", *words])
        assert isinstance(left.value.code, int)
        return Done(left.value.code, *capsys.readouterr())

    return command


Run = Callable[..., Done]


def words(shown: str) -> list[str]:
    """Return the shown words, without the uptimes."""
    return sorted(word for word in shown.split() if not UPTIME.fullmatch(word))


def leader(node: int | None, epoch: int | None = 1) -> dict[str, Any]:
    url = None if node is None else f"http://node-{node}:8080"
    return {"node": node, "url": url, "epoch": epoch}


def test_the_status_is_a_table_with_a_row_for_each_node(short: Short, run: Run) -> None:
    few = short.few
    few.slots, few.led, few.skew_ms = 341, {T: 3}, -7
    few.health.ended(None, None)
    few.wrong[few.nodes[1].url] = ConnectionRefusedError("refused")
    few.stop(2)
    code, out, err = run("status")
    lines = out.splitlines()
    assert (code, err) == (0, "node 1 does not answer: refused\n")
    assert lines[0].split()[:4] == ["NODE", "URL", "STATE", "VERSION"]
    *told, uptime = lines[1].split()
    assert UPTIME.fullmatch(uptime)
    assert told == [
        *("0", "http://node-0:8080", "serving", "1.0", "341", "1", "connected"),
        *("answers,", "0", "of", "1", "failed", "-7", "ms"),
    ]
    assert lines[2].split() == ["1", "http://node-1:8080", "silent", "1.0", *"??????"]
    assert lines[3].split()[2] == "stopping"
    assert len(lines) == 4


def test_problems_are_reported_beside_the_table(short: Short, run: Run) -> None:
    few = short.few
    few.contact = Contact.SUSPENDED
    few.health.ended("told", "no gateway")
    short.loop.run_until_complete(drain(few.records, 9))
    assert run("move", "default/t", "1").code == 0
    _, out, err = run("status")
    assert "failing, 1 of 1 failed" in out
    assert "last error of storage at 20" in err
    assert "node 9 is drained and not running" in err
    assert "node 0 has no contact with ZooKeeper (suspended)" in err
    assert "pinned topics: 1" in err


def test_a_narrow_terminal_shows_all_words(
    short: Short, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    short.few.health.ended(None, None)
    wide = run("status").out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run("status").out
    assert words(narrow) == words(wide)


def test_an_unreadable_pin_is_reported_beside_the_valid_ones(short: Short, run: Run) -> None:
    few = short.few
    short.loop.run_until_complete(pin(few.records, T, 0))
    short.loop.run_until_complete(few.records.put_if(b"pin/ns:odd:", None, b"{"))
    told = run("status").err
    assert "pinned topics: 1" in told
    assert "have no effect: the record b'pin/ns:odd:' does not decode" in told


def test_topics_are_named_on_demand(short: Short, run: Run) -> None:
    short.few.led = {T: 3}
    short.few.nodes = {0: short.few.nodes[0]}
    assert "default/t" not in run("status").out
    assert run("status", "--topics").out.splitlines()[-2:] == [
        "TOPIC      NODE  EPOCH",
        "default/t  0     3",
    ]
    told = json.loads(run("status", "--topics", "--json").out)
    assert told["nodes"][0]["view"]["topics"] == [{"topic": "default/t", "epoch": 3}]


def test_the_status_says_how_many_topics_it_does_not_name(short: Short, run: Run) -> None:
    short.few.led = {TopicId("ns", f"t{number}"): 1 for number in range(TOPICS_NAMED_MAX + 5)}
    short.few.nodes = {0: short.few.nodes[0]}
    assert run("status", "--topics").err == "and 5 more\n"


def test_leaders_of_topics(short: Short, run: Run) -> None:
    short.leaders = [leader(1, 7), leader(0, None)]
    assert run("leaders", "default/t", "a/b").out.splitlines() == [
        "TOPIC      NODE  URL                 EPOCH",
        "default/t  1     http://node-1:8080  7",
        "a/b        0     http://node-0:8080",
    ]
    told = json.loads(run("leaders", "default/t", "--json").out)
    assert told == [{"topic": "default/t", **leader(0, None)}]
    assert run("leaders").code == 2
    assert "NAMESPACE/TOPIC" in run("leaders", "t").err


def test_drain_and_undrain(short: Short, run: Run) -> None:
    code, out, err = run("drain", "1")
    assert (code, out) == (0, "")
    assert err.startswith("node 1 is drained\n")
    assert "broker cluster status" in err
    assert short.loop.run_until_complete(read_placement(short.few.records)).drained == {1}
    told = json.loads(run("undrain", "http://node-1:8080", "--json").out)
    assert told == {"node": 1, "url": "http://node-1:8080", "drained": False, "changed": True}
    assert run("undrain", "1").err == "node 1 was not drained\n"


def test_an_unknown_node_is_1_and_the_live_nodes_are_named(run: Run) -> None:
    for words in (("drain", "7"), ("undrain", "7"), ("move", "default/t", "7")):
        code, _, err = run(*words)
        assert code == 1
        assert "1 at http://node-1:8080" in err


def test_drain_waits_until_the_node_leads_nothing(short: Short, run: Run) -> None:
    few = short.few
    few.led, few.slots = {T: 1, TopicId("a", "b"): 1}, 2

    def move_one() -> None:
        if few.hints and few.led:
            few.led.popitem()
        elif few.hints:
            few.slots = 0

    short.before_each = move_one
    code, out, err = run("drain", "1", "--wait")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "node 1 leads 1 topics, 2 slots",
        "node 1 leads 0 topics, 2 slots",
        "node 1 leads nothing",
    ]


def test_a_drain_goes_on_while_the_node_does_not_answer(short: Short, run: Run) -> None:
    few = short.few
    few.wrong[few.nodes[1].url] = ConnectionRefusedError("refused")

    def leave() -> None:
        if short.asked == 4:
            del few.nodes[1]

    short.before_each = leave
    code, _, err = run("drain", "1", "--wait")
    assert code == 0
    assert err == "node 1 does not report what it leads: refused\nnode 1 leads nothing\n"


@pytest.mark.slow
def test_a_wait_that_times_out_reports_its_progress(short: Short, run: Run) -> None:
    short.few.slots = 5
    code, out, err = run("drain", "1", "--wait", "--wait-max", "0.1")
    assert (code, out) == (4, "")
    assert "after 0.1 s node 1 leads 0 topics, 5 slots" in err
    code, _, err = run("drain", "1", "--wait", "--wait-max", "0.1", "--json")
    assert (code, json.loads(err)["retriable"]) == (4, True)


def test_move_and_unpin(short: Short, run: Run) -> None:
    code, out, err = run("move", "default/t", "2")
    assert (code, out) == (0, "")
    assert err.startswith("default/t is pinned to node 2\n")
    assert "broker cluster leaders default/t" in err
    told = json.loads(run("move", "default/t", "http://node-1:8080", "--json").out)
    assert (told["topic"], told["node"]) == ("default/t", 1)
    assert run("unpin", "default/t").err == "default/t is no longer pinned\n"
    assert run("unpin", "default/t").err == "default/t had no pin\n"
    assert json.loads(run("unpin", "default/t", "--json").out)["changed"] is False
    missing = run("move", "default/none", "1")
    assert missing.code == 1
    assert "broker topics create" in missing.err


def test_move_waits_until_the_topic_is_led_there(short: Short, run: Run) -> None:
    short.leaders = [leader(0), leader(None), leader(0), leader(2)]
    code, out, err = run("move", "default/t", "2", "--wait")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "default/t is led by node 0",
        "default/t is led by no node",
        "default/t is led by node 0",
        "default/t is led by node 2",
    ]


def test_a_move_is_not_over_while_the_old_leader_holds_the_log(short: Short, run: Run) -> None:
    few = short.few
    few.nodes = {0: few.nodes[0], 2: few.nodes[2]}
    few.led_by = {0: {T: 4}}
    short.leaders = [leader(2, None)]

    def let_go() -> None:
        if short.asked == 6:
            few.led_by = {}

    short.before_each = let_go
    code, _, err = run("move", "default/t", "2", "--wait")
    assert (code, err) == (0, "default/t is led by node 0\ndefault/t is led by node 2\n")


def test_a_standalone_broker_shows_its_only_node(short: Short, run: Run) -> None:
    short.broker = Broker()
    code, out, err = run("status")
    assert (code, err) == (0, "")
    (row,) = out.splitlines()[1:]
    assert row.split()[:3] == ["0", "http://node-0:8080", "serving"]


def storage(calls: int, errors: int, success: str | None, failure: str | None) -> dict[str, object]:
    return {
        "calls": calls,
        "errors": errors,
        "last_success": success,
        "last_failure": failure,
        "last_error": None,
    }


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (storage(0, 0, None, None), "no calls yet"),
        (storage(5, 0, "2026-01-01T00:00:00.000Z", None), "answers, 0 of 5 failed"),
        (storage(1, 1, None, "2026-01-01T00:00:00.000Z"), "failing, 1 of 1 failed"),
        (
            storage(5, 1, "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:00.000Z"),
            "answers, 1 of 5 failed",
        ),
        (
            storage(5, 1, "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.001Z"),
            "failing, 1 of 5 failed",
        ),
    ],
)
def test_the_text_about_storage(told: dict[str, object], text: str) -> None:
    assert storage_text(told) == text


def test_progress_on_a_terminal_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with live_line() as show:
        for text in ("ten left", "ten left", "one"):
            show(text)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "shown"),
    [({}, "half\n"), ({"repeats": True}, "half\nhalf\n"), ({"silent": True}, "")],
)
def test_progress_elsewhere_is_a_line_for_each_change(
    options: dict[str, bool], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_line(**options) as show:
        show("half")
        show("half")
    assert capsys.readouterr().err == shown
