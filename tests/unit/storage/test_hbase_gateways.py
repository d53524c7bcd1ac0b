"""Calls, threads and errors, against a gateway of Thrift's own bytes on a real socket."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from broker.storage.cells import CellsError, CellsRefused
from broker.storage.hbase_gateways import IDL, Address, Ended, Gateways
from tests.unit.storage.served_gateway import DEADLINE_S, Served, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
async def gateway(served: Served) -> AsyncIterator[Gateways]:
    opened = Gateways([served.address])
    yield opened
    await opened.close()


async def ask(gateway: Gateways, name: bytes = b"t") -> bool:
    table = IDL.TTableName(qualifier=name)
    return await gateway.call("exists", lambda client: client.tableExists(table))


async def test_a_connection_is_used_again(served: Served, gateway: Gateways) -> None:
    assert await ask(gateway)
    assert await ask(gateway)
    assert len(served.open) == 1


async def test_a_connection_that_the_gateway_closed_is_not_used(
    served: Served, gateway: Gateways
) -> None:
    assert await ask(gateway)
    served.close_connections()
    assert await ask(gateway)
    assert len(served.open) == 2


async def test_a_connection_that_was_idle_too_long_is_not_used(served: Served) -> None:
    gateway = Gateways([served.address], idle_s=0)
    assert await ask(gateway)
    assert await ask(gateway)
    assert len(served.open) == 2
    await gateway.close()


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


async def test_an_answer_that_never_comes_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gateway = Gateways([Address("127.0.0.1", silent.getsockname()[1])], call_s=0.05)
        with pytest.raises(CellsError) as caught:
            await ask(gateway)
        assert not isinstance(caught.value, CellsRefused)
        await gateway.close()


def nobody() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return Address("127.0.0.1", probe.getsockname()[1])


async def test_nobody_there_is_refused() -> None:
    gateway = Gateways([nobody(), nobody()], connect_s=0.1)
    with pytest.raises(CellsRefused):
        await ask(gateway)
    await gateway.close()


async def test_another_gateway_answers_for_one_that_is_down(served: Served) -> None:
    gateway = Gateways([nobody(), served.address])
    assert await ask(gateway)
    await gateway.close()


async def test_who_waits_too_long_for_a_connection_was_not_sent(served: Served) -> None:
    gateway = Gateways([served.address], connections_max=1, call_s=0.05)
    begun, end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(_: Any) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return end.wait(DEADLINE_S)

    blocking = asyncio.create_task(gateway.call("block", block))
    await asyncio.wait_for(begun.wait(), DEADLINE_S)
    with pytest.raises(CellsRefused):
        await ask(gateway)
    end.set()
    assert await blocking
    await gateway.close()


async def test_a_cancelled_call_keeps_its_connection_until_it_ends(served: Served) -> None:
    gateway = Gateways([served.address], connections_max=1, call_s=0.05)
    begun, end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(_: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        end.wait(DEADLINE_S)

    cancelled = asyncio.create_task(gateway.call("block", block))
    await asyncio.wait_for(begun.wait(), DEADLINE_S)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(CellsRefused):
        await asyncio.wait_for(ask(gateway), DEADLINE_S)
    end.set()
    await gateway.close()


async def test_each_call_is_told_of_as_it_ends(served: Served) -> None:
    told: list[Ended] = []
    gateway = Gateways([served.address], observe=told.append)
    await ask(gateway)
    for name in (b"error", b"cut"):
        with pytest.raises(CellsError):
            await ask(gateway, name)
    await gateway.close()
    gateway = Gateways([nobody()], connect_s=0.1, observe=told.append)
    with pytest.raises(CellsRefused):
        await ask(gateway)
    await gateway.close()
    assert [each.kind for each in told] == [None, "told", "cut", "refused"]
    assert {each.call for each in told} == {"exists"}
    assert told[1].message == "java.io.IOException: no"
    assert all(each.seconds >= 0 for each in told)


async def test_a_bug_of_the_caller_is_not_taken_for_the_gateways(served: Served) -> None:
    gateway = Gateways([served.address])

    def broken(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await gateway.call("broken", broken)
    assert await ask(gateway)
    assert len(served.open) == 2
    await gateway.close()


async def test_closing_ends_a_call_that_is_never_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        gateway = Gateways([Address("127.0.0.1", silent.getsockname()[1])], call_s=10 * DEADLINE_S)
        asking = asyncio.create_task(ask(gateway))
        accepted, _ = await asyncio.to_thread(silent.accept)
        with accepted:
            async with asyncio.timeout(DEADLINE_S):
                await gateway.close()
                with pytest.raises(CellsError) as caught:
                    await asking
        assert not isinstance(caught.value, CellsRefused)
