"""The pool and its errors, against a gateway of Thrift's own bytes on a real socket."""

import asyncio
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TBufferedTransport, TSocket

from broker.storage.cells import CellsError, CellsRefused
from broker.storage.hbase import IDL, Address, Gateway

DEADLINE_S = 20


class Handler:
    """Answers ``tableExists`` as the table's name says."""

    def tableExists(self, name: Any) -> bool:  # noqa: N802  Thrift's name.
        match name.qualifier:
            case b"error":
                raise IDL.TIOError(message="java.io.IOException: no\n\tat Some.java:1")
            case b"cut":
                raise ConnectionAbortedError
        return True


class Served(socketserver.ThreadingTCPServer):
    """Counts connections and can close them all."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.open: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), Conversation)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.server_address[1])

    def close_connections(self) -> None:
        for connection in self.open:
            connection.shutdown(socket.SHUT_RDWR)


class Conversation(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.server.open.append(self.request)
        processor = TProcessor(IDL.THBaseService, Handler())
        transport = TBufferedTransport(TSocket(sock=self.request))
        protocol = TBinaryProtocol(transport)
        try:
            while True:
                processor.process(protocol, protocol)
        except Exception:  # noqa: BLE001  The connection is over, whatever the reason.
            self.request.close()


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_S)


@pytest.fixture
async def gateway(served: Served) -> AsyncIterator[Gateway]:
    opened = Gateway([served.address])
    yield opened
    await opened.close()


async def ask(gateway: Gateway, name: bytes = b"t") -> bool:
    return await gateway.call(lambda client: client.tableExists(IDL.TTableName(qualifier=name)))


async def test_a_connection_is_used_again(served: Served, gateway: Gateway) -> None:
    assert await ask(gateway)
    assert await ask(gateway)
    assert len(served.open) == 1


async def test_a_connection_that_the_gateway_closed_is_not_used(
    served: Served, gateway: Gateway
) -> None:
    assert await ask(gateway)
    served.close_connections()
    assert await ask(gateway)
    assert len(served.open) == 2


async def test_a_connection_that_was_idle_too_long_is_not_used(served: Served) -> None:
    gateway = Gateway([served.address], idle_s=0)
    assert await ask(gateway)
    assert await ask(gateway)
    assert len(served.open) == 2
    await gateway.close()


async def test_what_the_gateway_tells_is_unknown_and_keeps_the_connection(
    served: Served, gateway: Gateway
) -> None:
    with pytest.raises(CellsError, match=r"^java.io.IOException: no$") as caught:
        await ask(gateway, b"error")
    assert not isinstance(caught.value, CellsRefused)
    assert await ask(gateway)
    assert len(served.open) == 1


async def test_a_connection_cut_during_a_call_is_unknown_and_closed(
    served: Served, gateway: Gateway
) -> None:
    with pytest.raises(CellsError) as caught:
        await ask(gateway, b"cut")
    assert not isinstance(caught.value, CellsRefused)
    assert await ask(gateway)
    assert len(served.open) == 2


async def test_an_answer_that_never_comes_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gateway = Gateway([Address("127.0.0.1", silent.getsockname()[1])], call_s=0.05)
        with pytest.raises(CellsError) as caught:
            await ask(gateway)
        assert not isinstance(caught.value, CellsRefused)
        await gateway.close()


def nobody() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return Address("127.0.0.1", probe.getsockname()[1])


async def test_nobody_there_is_refused() -> None:
    gateway = Gateway([nobody(), nobody()])
    with pytest.raises(CellsRefused):
        await ask(gateway)
    await gateway.close()


async def test_another_gateway_answers_for_one_that_is_down(served: Served) -> None:
    gateway = Gateway([nobody(), served.address])
    assert await ask(gateway)
    await gateway.close()


async def test_who_waits_too_long_for_a_connection_was_not_sent(served: Served) -> None:
    gateway = Gateway([served.address], connections_max=1, call_s=0.05)
    begun, end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(_: Any) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return end.wait(DEADLINE_S)

    blocking = asyncio.create_task(gateway.call(block))
    await asyncio.wait_for(begun.wait(), DEADLINE_S)
    with pytest.raises(CellsRefused):
        await ask(gateway)
    end.set()
    assert await blocking
    await gateway.close()


async def test_a_cancelled_call_keeps_its_connection_until_it_ends(served: Served) -> None:
    gateway = Gateway([served.address], connections_max=1, call_s=0.05)
    begun, end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(_: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        end.wait(DEADLINE_S)

    cancelled = asyncio.create_task(gateway.call(block))
    await asyncio.wait_for(begun.wait(), DEADLINE_S)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(CellsRefused):
        await asyncio.wait_for(ask(gateway), DEADLINE_S)
    end.set()
    await gateway.close()
