"""Calls without a thread: answers in pieces, cut, late, and what thriftpy2 must not be given."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TMemoryBuffer

from broker.storage.cells import CellsError, CellsRefused
from broker.storage.hbase_gateways import IDL, Address, Gateways
from broker.storage.hbase_exchange import AnswerCut, Line, decode, encode, is_whole
from broker.testing.bench import settle
from tests.unit.storage.served_gateway import DEADLINE_S, Served, serving

CELL = IDL.TColumnValue(family=b"d", qualifier=b"c", value=b"some value", timestamp=7)


def answer(api: str, kind: int = TMessageType.REPLY, **fields: Any) -> bytes:
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.write_message_begin(api, kind, 0)
    made = getattr(IDL.THBaseService, f"{api}_result")()
    for name, value in fields.items():
        setattr(made, name, value)
    made.write(protocol)
    return bytes(buffer.getvalue())


ANSWERS = {
    "put": answer("put"),
    "checkAndPut": answer("checkAndPut", success=True),
    "get": answer("get", success=IDL.TResult(row=b"k", columnValues=[CELL, CELL])),
    "putMultiple": answer("putMultiple", io=IDL.TIOError(message="no", canRetry=True)),
    "getScannerResults": answer(
        "getScannerResults", success=[IDL.TResult(columnValues=[CELL])] * 3
    ),
}


@pytest.mark.parametrize("api", ANSWERS)
def test_an_answer_is_whole_at_its_last_byte_and_not_before(api: str) -> None:
    whole = ANSWERS[api]
    assert [is_whole(whole[:size]) for size in range(len(whole))] == [False] * len(whole)
    assert is_whole(whole)


def test_answers_say_what_was_answered() -> None:
    assert decode("put", ANSWERS["put"]) is None
    assert decode("checkAndPut", ANSWERS["checkAndPut"]) is True
    assert decode("checkAndPut", answer("checkAndPut", success=False)) is False
    assert decode("get", ANSWERS["get"]).columnValues == [CELL, CELL]
    with pytest.raises(IDL.TIOError):
        decode("putMultiple", ANSWERS["putMultiple"])
    with pytest.raises(TApplicationException):
        decode("checkAndPut", answer("checkAndPut"))


def test_what_is_no_answer_is_not_waited_for() -> None:
    with pytest.raises(AnswerCut):
        is_whole(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(AnswerCut):
        is_whole(ANSWERS["put"] + b"\0")
    broken = bytearray(ANSWERS["put"])
    broken[-1] = 99  # No such kind of value.
    with pytest.raises(AnswerCut):
        is_whole(bytes(broken) + bytes(8))


def test_a_call_is_encoded_as_thriftpy2_does() -> None:
    get = IDL.TGet(row=b"k")
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.write_message_begin("get", TMessageType.CALL, 0)
    IDL.THBaseService.get_args(table=b"t", tget=get).write(protocol)
    assert encode("get", (b"t", get)) == buffer.getvalue()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def exchanged(ours: socket.socket, request: bytes, answer_s: float) -> asyncio.Future[Any]:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    Line(ours.fileno()).ask(request, ended.set_result, answer_s)
    return ended


async def test_pieces_make_an_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ended = await exchanged(ours, b"request", DEADLINE_S)
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(theirs, 100) == b"request"
    for byte in ANSWERS["get"]:
        assert not ended.done()
        await loop.sock_sendall(theirs, bytes([byte]))
        await settle(1)
    assert await asyncio.wait_for(ended, DEADLINE_S) == ANSWERS["get"]


async def test_a_request_that_the_socket_can_not_hold_is_sent_whole(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    request = bytes(range(256)) * (1 << 14)
    ended = await exchanged(ours, request, DEADLINE_S)
    loop = asyncio.get_running_loop()
    arrived = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while len(arrived) < len(request):
            arrived += await loop.sock_recv(theirs, 1 << 16)
    assert arrived == request
    theirs.sendall(ANSWERS["put"])
    assert await asyncio.wait_for(ended, DEADLINE_S) == ANSWERS["put"]


async def test_an_answer_to_half_a_request_is_none(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ended = await exchanged(ours, bytes(1 << 22), DEADLINE_S)
    theirs.sendall(ANSWERS["put"])
    assert isinstance(await asyncio.wait_for(ended, DEADLINE_S), AnswerCut)


async def test_the_end_of_the_stream_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ended = await exchanged(ours, b"request", DEADLINE_S)
    theirs.sendall(ANSWERS["get"][:-1])
    theirs.close()
    assert isinstance(await asyncio.wait_for(ended, DEADLINE_S), ConnectionError)


async def test_silence_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ended = await exchanged(pair[0], b"request", 0.01)
    assert isinstance(await asyncio.wait_for(ended, DEADLINE_S), TimeoutError)


async def test_a_line_takes_one_request_after_the_other(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    line = Line(ours.fileno())
    loop = asyncio.get_running_loop()
    for api in ("put", "get", "checkAndPut"):
        ended: asyncio.Future[Any] = loop.create_future()
        line.ask(api.encode(), ended.set_result, DEADLINE_S)
        assert await loop.sock_recv(theirs, 100) == api.encode()
        theirs.sendall(ANSWERS[api])
        assert await asyncio.wait_for(ended, DEADLINE_S) == ANSWERS[api]
    assert not line.is_over


@pytest.mark.parametrize("how", ["the end", "an answer"])
async def test_what_comes_between_calls_ends_the_line(
    pair: tuple[socket.socket, socket.socket], how: str
) -> None:
    ours, theirs = pair
    line = Line(ours.fileno())
    if how == "the end":
        theirs.close()
    else:
        theirs.sendall(ANSWERS["put"])
    await settle(3)
    assert line.is_over


async def test_a_thread_closes_a_line_once_the_loop_looks_at_it_no_more(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    line = Line(pair[0].fileno())
    was_over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    await asyncio.to_thread(line.close, lambda: was_over.set_result(line.is_over))
    assert await asyncio.wait_for(was_over, DEADLINE_S)


# Through the gateways.


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
async def gateway(served: Served) -> AsyncIterator[Gateways]:
    opened = Gateways([served.address])
    await ask(opened)  # The first call connects, in a thread.
    yield opened
    await opened.close()


async def ask(gateway: Gateways, name: bytes = b"t") -> bool:
    request = encode("tableExists", (IDL.TTableName(qualifier=name),))
    told: bool = await gateway.ask("exists", "tableExists", request)
    return told


async def test_a_ready_connection_needs_no_thread(
    served: Served, gateway: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_in_thread", None)
    assert await ask(gateway)
    assert not await ask(gateway, b"none")
    assert len(served.open) == 1


async def test_a_connection_that_the_gateway_closed_is_not_used(
    served: Served, gateway: Gateways
) -> None:
    served.close_connections()
    assert await ask(gateway)
    assert len(served.open) == 2


async def test_a_connection_of_the_loop_that_the_gateway_closed_is_not_used(
    served: Served, gateway: Gateways
) -> None:
    assert await ask(gateway)  # From now on it is the loop's.
    served.close_connections()
    assert await ask(gateway)
    assert len(served.open) == 2


async def test_a_connection_on_which_came_what_nobody_asked_for_is_not_used(
    served: Served, gateway: Gateways
) -> None:
    assert await ask(gateway)
    (one,) = gateway._connections._gateways
    (connection,) = one.ready
    (theirs,) = served.open
    theirs.sendall(ANSWERS["put"])
    async with asyncio.timeout(DEADLINE_S):
        while not connection.in_loop().is_over:
            await settle(1)  # Until the loop has read it, so that nothing is left to be seen.
        assert await ask(gateway)
    assert len(served.open) == 2


async def test_a_connection_of_the_loop_is_no_threads(served: Served, gateway: Gateways) -> None:
    assert await ask(gateway)
    assert await gateway.call(
        "ask", lambda client: client.tableExists(IDL.TTableName(qualifier=b"t"))
    )
    assert len(served.open) == 2, "one for the thread"
    assert await ask(gateway)
    assert len(served.open) == 2


async def test_a_failure_in_a_thread_closes_the_loops_connections_too(
    served: Served, gateway: Gateways
) -> None:
    assert await ask(gateway)
    with pytest.raises(CellsError):
        await gateway.call(
            "ask", lambda client: client.tableExists(IDL.TTableName(qualifier=b"cut"))
        )
    assert await ask(gateway)
    (one,) = gateway._connections._gateways
    assert len(one.ready) + len(one.idle) == 1


async def test_what_the_gateway_tells_is_unknown_and_keeps_the_connection(
    served: Served, gateway: Gateways
) -> None:
    with pytest.raises(CellsError, match=r"^java.io.IOException: no$") as caught:
        await ask(gateway, b"error")
    assert not isinstance(caught.value, CellsRefused)
    assert await ask(gateway)
    assert len(served.open) == 1


async def test_a_connection_cut_during_a_call_is_unknown_and_closed(
    served: Served, gateway: Gateways
) -> None:
    with pytest.raises(CellsError) as caught:
        await ask(gateway, b"cut")
    assert not isinstance(caught.value, CellsRefused)
    assert await ask(gateway)
    assert len(served.open) == 3, "one for the question whether it is well"


async def ready(silent: socket.socket, gateway: Gateways) -> socket.socket:
    """Let a gateway that never answers have an idle connection to it."""
    connection = await asyncio.to_thread(gateway._connections.take)
    gateway._connections.give_back(connection, doubtful=False)
    accepted, _ = await asyncio.to_thread(silent.accept)
    return accepted


async def test_a_cancelled_call_keeps_its_connection_until_it_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        address = Address("127.0.0.1", silent.getsockname()[1])
        gateway = Gateways([address], connections_max=1, call_s=10 * DEADLINE_S)
        with await ready(silent, gateway) as accepted:
            accepted.settimeout(DEADLINE_S)
            asking = asyncio.create_task(ask(gateway))
            assert await asyncio.to_thread(accepted.recv, 1000)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            following = asyncio.create_task(ask(gateway))
            accepted.sendall(answer("tableExists", success=False))
            assert await asyncio.to_thread(accepted.recv, 1000)
            accepted.sendall(answer("tableExists", success=True))
            assert await asyncio.wait_for(following, DEADLINE_S)
            await gateway.close()


async def test_closing_ends_a_call_that_is_never_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        gateway = Gateways([Address("127.0.0.1", silent.getsockname()[1])], call_s=10 * DEADLINE_S)
        with await ready(silent, gateway) as accepted:
            accepted.settimeout(DEADLINE_S)
            asking = asyncio.create_task(ask(gateway))
            assert await asyncio.to_thread(accepted.recv, 1000)
            async with asyncio.timeout(DEADLINE_S):
                await gateway.close()
                with pytest.raises(CellsError) as caught:
                    await asking
        assert not isinstance(caught.value, CellsRefused)


async def test_a_connection_that_never_lasts_is_not_waited_for_for_ever(served: Served) -> None:
    gateway = Gateways([served.address], call_s=0.1, idle_s=0.0)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(CellsRefused, match="end before they are used"):
            await ask(gateway)
        await gateway.close()


async def test_what_is_no_answer_is_unknown_in_a_thread_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        gateway = Gateways([Address("127.0.0.1", server.getsockname()[1])])

        def answer_in_html() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(100)
                accepted.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")

        answering = asyncio.create_task(asyncio.to_thread(answer_in_html))
        with pytest.raises(CellsError) as caught:
            await gateway.call("ask", lambda client: client.getThriftServerType())
        assert not isinstance(caught.value, CellsRefused)
        await answering
        await gateway.close()


async def test_where_no_thread_is_to_be_had_nothing_is_sent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gateway = Gateways([served.address], connections_max=1)
    asked = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):  # The first gives its turn back.
        with pytest.raises(CellsRefused, match="can't start"):
            await gateway.call("ask", asked.append)
    monkeypatch.undo()
    assert await ask(gateway)
    assert asked == [], "what was refused is not done later"
    await gateway.close()
    with pytest.raises(CellsRefused):
        await gateway.call("ask", asked.append)


async def test_a_call_is_answered_whatever_goes_wrong_with_its_end(
    served: Served, gateway: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(gateway, "_tell", fail)
    asyncio.get_running_loop().set_exception_handler(lambda _, told: None)
    asking = asyncio.ensure_future(ask(gateway, b"error"))
    assert await asyncio.wait({asking}, timeout=DEADLINE_S) == ({asking}, set())
    assert asking.exception() is not None
