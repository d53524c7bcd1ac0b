"""Listeners on other nodes, over real connections."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from broker.clock import SystemClock
from broker.coordination.memory import MemoryCoordination
from broker.coordination.ports import NodeInfo
from broker.errors import BadRequest, Forbidden, NotFound, Unavailable
from broker.http.outbound import OutboundConnection
from broker.http.pool import open_connection
from broker.rowlog import Message, RowLog, Subscription, remote
from broker.rowlog.memory import MemoryRows
from broker.rowlog.remote import PREFIX, ListenerNode, decode_message, encode_message
from tests.kit.serving import eventually, quiet_port
from tests.unit.rowlog.world import ROW, TABLE, Heard


class Ask(NamedTuple):
    """A request to a node."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


MESSAGE = Message("mq", b"row\0", 2, 7, b"data", b"payload")


class Nodes:
    """Processes of one rowlog in this event loop."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.stored = {TABLE: {}}  # type: ignore[var-annotated]
        self.coordination = MemoryCoordination(self.clock)
        self.logs: list[RowLog] = []

    async def log(self) -> RowLog:
        made = RowLog(
            None,
            TABLE.decode(),
            id="mq",
            rows=MemoryRows(self.stored),
            coordinator=self.coordination.session(),
            clock=self.clock,
        )
        await made.open()
        self.logs.append(made)
        return made


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    for log in made.logs:
        await log.close()


async def test_messages_go_to_the_nodes_that_listen(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_S", 20.0)
    processor = await nodes.log()
    await processor.subscribe(Subscription("a", backoff_ms_first=1))
    heard = [Heard(ValueError("no good")), Heard()]
    for listener in heard:
        node = await nodes.log()
        node.listen("a", listener)
        await node.serve_listeners()
    gate = asyncio.Event()
    for listener in heard:
        listener.gate = gate
    await processor.start(remote=True)
    for row in (b"1", b"2", b"3", b"4"):
        await processor.put(row, payload=b"p", data=b"d")
    for listener in heard:
        await listener.until(begun=2)
    assert [len(each.messages) for each in heard] == [2, 2]
    gate.set()
    await asyncio.gather(*(each.until(ended=2) for each in heard))
    figures = processor.figures.values
    await eventually(lambda: figures["processed", "a"] == 4, lambda: figures)
    assert figures["retries", "a"] == 1
    assert {(each.data, each.payload) for each in heard[0].messages} == {(b"d", b"p")}


@pytest.mark.slow
async def test_a_node_that_goes_is_offered_nothing_more_and_another_gets_it(nodes: Nodes) -> None:
    processor = await nodes.log()
    await processor.subscribe(Subscription("a", backoff_ms_first=1))
    first, second = Heard(), Heard()
    first.gate = asyncio.Event()
    node = await nodes.log()
    node.listen("a", first)
    await node.serve_listeners()
    await processor.start(remote=True)
    await processor.put(ROW)
    await first.until(begun=1)
    await node.close()
    nodes.logs.remove(node)
    processor.listen("a", second)
    await second.until(ended=1)
    assert second.seqs == [1]
    assert first.in_flight == set(), "it was cancelled"


@pytest.fixture
async def other_program() -> AsyncIterator[str]:
    """The URL of a program that answers every question, but not with listeners."""
    body = b'{"listeners": 5}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()  # From Python 3.12.1 on, wait_closed waits for the connections, which the nodes keep.


async def test_members_that_are_no_listening_nodes_are_passed_over(
    nodes: Nodes, other_program: str
) -> None:
    odd = {other_program, "http://::1:8090", "http://host:99999"}
    for instance, url in enumerate(odd):
        await nodes.coordination.session().join(NodeInfo(instance, "token", url, "1", 1))
    processor, node, heard = await nodes.log(), await nodes.log(), Heard()
    await processor.subscribe(Subscription("a"))
    with capture_logs() as told:
        await processor.start(remote=True)
        node.listen("a", heard)
        await node.serve_listeners()
        await processor.put(ROW)
        await heard.until(ended=1)
    assert {each["url"] for each in told if each["log_level"] == "warning"} == odd


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", ""), ("::", ""), ("127.0.0.1", "http://::1:8090"), ("127.0.0.1", "worker:80")],
)
async def test_a_process_announces_no_url_that_other_nodes_can_not_reach(
    nodes: Nodes, host: str, url: str
) -> None:
    log = await nodes.log()
    with pytest.raises(BadRequest):
        await log.serve_listeners(host, url=url)
    assert (await log.serve_listeners("127.0.0.1")).startswith("http://127.0.0.1:")


async def test_a_process_announces_the_url_that_it_is_given(nodes: Nodes) -> None:
    log = await nodes.log()
    given = "http://worker1.example:8090"
    assert await log.serve_listeners("0.0.0.0", url=given) == given


async def test_an_address_of_ipv6_is_announced_in_brackets(nodes: Nodes) -> None:
    log = await nodes.log()
    try:
        url = await log.serve_listeners("::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    connection = await open_connection(OutboundConnection(url, {}), 5)
    connection.close()
    assert url.startswith("http://[::1]:")


async def test_a_node_that_ends_answers_only_when_its_listener_has_ended(
    nodes: Nodes, other_program: str
) -> None:
    """From its answer on the processor may offer the message to another node."""
    begun, answered = asyncio.Event(), []
    other = await open_connection(OutboundConnection(other_program, {}), 5)

    async def listener(_: Message) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # An answer of the node would come meanwhile.
                await other.exchange(Ask("GET", "/", {}, b""), 5)
            answered.append(asking.done())

    log = await nodes.log()
    log.listen("a", listener)
    connection = await open_connection(OutboundConnection(await log.serve_listeners(), {}), 5)
    ask = Ask("POST", PREFIX + "mq/a", {}, encode_message(MESSAGE))
    asking = asyncio.create_task(connection.exchange(ask, 5))
    await begun.wait()
    await log.close()
    assert (await asking).status == 503
    assert answered == [False]
    connection.close()
    other.close()


async def test_serving_that_failed_leaves_nothing_and_may_be_tried_again(
    nodes: Nodes,
) -> None:
    log = await nodes.log()
    port = quiet_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="in use"):
        await log.serve_listeners(port=port)
    nodes.coordination.outage()
    with pytest.raises(Unavailable):
        await log.serve_listeners(port=port)
    nodes.coordination.recover()
    assert await log.serve_listeners(port=port) == f"http://127.0.0.1:{port}"


async def test_a_rowlog_that_has_all_its_nodes_refuses_another(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.rowlog.host.INSTANCES_MAX", 2)
    for _ in range(2):
        await (await nodes.log()).serve_listeners()
    with pytest.raises(Unavailable, match="2 nodes"):
        await (await nodes.log()).serve_listeners()


async def test_a_process_that_is_a_member_can_not_serve_any_more(nodes: Nodes) -> None:
    """Other nodes know it by a URL at which it serves nothing."""
    log = await nodes.log()
    await log.start(remote=True)
    with pytest.raises(BadRequest, match="before start"):
        await log.serve_listeners()


async def test_a_process_that_failed_to_serve_can_process(nodes: Nodes) -> None:
    log = await nodes.log()
    nodes.coordination.outage()
    with pytest.raises(Unavailable):
        await log.serve_listeners()
    nodes.coordination.recover()
    await log.start(remote=True)
    (node,) = (await nodes.coordination.session().nodes()).values()
    assert node.url.startswith("local:"), "it announces no URL at which it serves nothing"


async def test_a_listening_node_serves_its_own_rowlog_and_its_metrics(nodes: Nodes) -> None:
    log = await nodes.log()
    log.listen("a b", Heard(ValueError("why")))
    url = await log.serve_listeners()
    connection = await open_connection(OutboundConnection(url, {}), 5)
    for ask, status, told in (
        (Ask("GET", PREFIX + "mq", {}, b""), 200, {"rowlog": "mq", "listeners": ["a b"]}),
        (
            Ask("POST", PREFIX + "mq/a%20b", {}, encode_message(MESSAGE)),
            200,
            {"done": False, "reason": "ValueError: why"},
        ),
        (Ask("POST", PREFIX + "mq/a%20b", {}, encode_message(MESSAGE)), 200, {"done": True}),
    ):
        reply = await connection.exchange(ask, 5)
        assert (reply.status, json.loads(reply.body)) == (status, told)
    reply = await connection.exchange(Ask("GET", "/metrics", {}, b""), 5)
    assert reply.status == 200
    for path, body, code in (
        ("mq/other", encode_message(MESSAGE), "not_found"),
        ("mq/a%20b", b"\x01short", "bad_request"),
    ):
        ask = Ask("POST", PREFIX + path, {"Accept": "application/json"}, body)
        reply = await connection.exchange(ask, 5)
        assert json.loads(reply.body)["code"] == code
    connection.close()


async def test_a_listener_that_awaits_a_cancelled_task_has_failed(nodes: Nodes) -> None:
    lost = asyncio.get_running_loop().create_future()
    lost.cancel()

    async def listener(_: Message) -> None:
        await lost

    log = await nodes.log()
    log.listen("a", listener)
    connection = await open_connection(OutboundConnection(await log.serve_listeners(), {}), 5)
    ask = Ask("POST", PREFIX + "mq/a", {}, encode_message(MESSAGE))
    reply = await connection.exchange(ask, 5)
    connection.close()
    assert json.loads(reply.body) == {"done": False, "reason": "CancelledError"}


def test_a_message_is_read_as_it_was_written() -> None:
    raw = encode_message(MESSAGE)
    assert raw[:17].hex() == "0100000000000000070000000000000002"
    assert decode_message("mq", raw) == MESSAGE
    for wrong in (b"", raw[:20], b"\x02" + raw[1:], raw[:17] + b"\xff\xff\xff\xff"):
        with pytest.raises(BadRequest):
            decode_message("mq", wrong)


async def test_a_listening_node_refuses_other_rowlogs_and_web_pages() -> None:
    node = ListenerNode("mq", None, str, SystemClock(), 10)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        node.admit("GET", PREFIX + "other", {})
    with pytest.raises(Forbidden):
        node.admit("GET", PREFIX + "mq", {"Origin": "http://evil"})
