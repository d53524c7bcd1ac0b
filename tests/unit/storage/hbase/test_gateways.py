"""Calls to gateways: the choice of the gateway, turns, deadlines and errors. Real sockets, no HBase."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from broker.storage.call_health import CallOutcome
from broker.storage.hbase import gateways as module
from broker.storage.hbase import requests
from broker.storage.hbase.gateways import GatewayAddress, GatewayFailed, Gateways
from broker.storage.table import NotWritten, TableError, WriteUnknown
from tests.kit.bench import settle
from tests.kit.garbage import no_cycle_through_a_traceback
from tests.kit.serving import eventually, quiet_port
from tests.unit.storage.hbase.fake import DEADLINE_S, HOST, IDL, Served, reply, serving

TWO = reply("getThriftServerType", success=IDL.TThriftServerType.TWO)
ONE = reply("getThriftServerType", success=IDL.TThriftServerType.ONE)
TRUE = reply("tableExists", success=True)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@asynccontextmanager
async def opened(*addresses: GatewayAddress, **options: Any) -> AsyncIterator[Gateways]:
    gateways = Gateways(addresses, **options)
    try:
        yield gateways
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await gateways.close()


@pytest.fixture
async def gateways(served: Served) -> AsyncIterator[Gateways]:
    async with opened(served.address) as made:
        yield made


async def ask(gateways: Gateways, name: bytes = b"t") -> bool:
    async with asyncio.timeout(DEADLINE_S):
        told = await gateways.ask("exists", requests.of_table("tableExists", b"", name))
    return bool(told)


def free_address() -> GatewayAddress:
    return GatewayAddress(HOST, quiet_port())


SILENCE = b""


class Scripted:
    """A gateway with scripted answers to the calls of all its connections, in the order of the calls.

    ``answers``: bytes, or a future of bytes; None ends the connection. After the last one it does not answer.
    ``identity``: the answer to the question whether it is a gateway of Thrift 2.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.identity: bytes | None = TWO
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        self.questions = 0
        self._waiting: set[asyncio.Future[Any]] = set()
        self._serving: set[asyncio.Task[Any] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
        while request := await reader.read(1 << 16):
            if request == requests.SERVER_TYPE:
                self.questions += 1
                answer = self.identity
            else:
                self.asked.put_nowait(request)
                answer = self.answers.pop(0) if self.answers else SILENCE
            if isinstance(answer, asyncio.Future):
                self._waiting.add(answer)
                answer = await answer
            if answer is None:
                break
            writer.write(answer)
        writer.close()

    async def end(self) -> None:
        for answer in self._waiting:
            if not answer.done():
                answer.set_result(None)
        await asyncio.gather(*filter(None, self._serving), return_exceptions=True)

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.asked.get(), DEADLINE_S)


@asynccontextmanager
async def scripted(count: int = 1) -> AsyncIterator[tuple[list[Scripted], list[GatewayAddress]]]:
    """Serve some gateways with scripted answers."""
    async with AsyncExitStack() as stack:
        made, addresses = [], []
        for _ in range(count):
            made.append(one := Scripted())
            server = await asyncio.start_server(one.serve, HOST, 0)
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            stack.push_async_callback(one.end)
            addresses.append(GatewayAddress(*server.sockets[0].getsockname()))
        yield made, addresses


# Connections.


async def test_calls_share_a_connection(served: Served, gateways: Gateways) -> None:
    assert await ask(gateways)
    assert not await ask(gateways, b"none")
    assert len(served.open) == 1


async def ended_by_the_client(theirs: socket.socket) -> None:
    """Wait until the client has ended a connection: then the server closes its side."""
    await eventually(lambda: theirs.fileno() < 0, lambda: "the connection is open")


async def test_a_connection_that_the_gateway_closed_is_not_used(
    served: Served, gateways: Gateways
) -> None:
    assert await ask(gateways)
    (theirs,) = served.open
    theirs.shutdown(socket.SHUT_WR)
    await ended_by_the_client(theirs)
    assert await ask(gateways)
    assert len(served.open) == 2


async def test_a_connection_that_was_idle_too_long_is_not_used(served: Served) -> None:
    async with opened(served.address, idle_s=0) as gateways:
        assert await ask(gateways)
        assert await ask(gateways)
        assert len(served.open) == 2


async def test_a_connection_with_unsolicited_bytes_is_not_used(
    served: Served, gateways: Gateways
) -> None:
    assert await ask(gateways)
    (theirs,) = served.open
    theirs.sendall(TRUE)
    await ended_by_the_client(theirs)
    assert await ask(gateways)
    assert len(served.open) == 2


@pytest.mark.parametrize(
    "identity", [SILENCE, None, b"HTTP/1.1 503 Service Unavailable\r\n\r\n", ONE]
)
async def test_a_server_that_is_no_gateway_gets_no_call(identity: bytes | None) -> None:
    async with scripted() as ([one], [address]), opened(address, connect_s=0.05) as gateways:
        one.identity = identity
        with pytest.raises(NotWritten, match="no gateway of HBase answers"):
            await ask(gateways)
        assert one.asked.empty()
        one.identity, one.answers = TWO, [TRUE]
        while isinstance(
            told := (await asyncio.gather(ask(gateways), return_exceptions=True))[0], NotWritten
        ):
            pass
        assert told is True


# Errors and their outcomes.


async def test_an_error_of_hbase_is_unknown_and_keeps_the_connection(
    served: Served, gateways: Gateways
) -> None:
    with pytest.raises(WriteUnknown, match=r"^java.io.IOException: no$"):
        await ask(gateways, b"error")
    assert await ask(gateways)
    assert len(served.open) == 1


async def test_a_connection_cut_during_a_call_is_unknown_and_closed(
    served: Served, gateways: Gateways
) -> None:
    assert await ask(gateways)
    with pytest.raises(WriteUnknown, match="ended the connection"):
        await ask(gateways, b"cut")
    assert await ask(gateways)
    assert len(served.open) == 2, "the call uses the connection that probed the gateway"


async def test_an_answer_that_is_no_thrift_is_unknown_and_ends_the_connection() -> None:
    async with scripted() as ([one], [address]), opened(address) as gateways:
        one.answers = [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", TRUE]
        with pytest.raises(WriteUnknown, match="not an answer"):
            await ask(gateways)
        assert await ask(gateways)
        assert one.questions == 2


async def test_an_error_of_the_gateway_itself_closes_the_connection() -> None:
    async with scripted() as ([one], [address]), opened(address) as gateways:
        internal = b"\x80\x01\x00\x03" + reply("get")[4:]
        one.answers = [internal, TRUE]
        with pytest.raises(WriteUnknown, match="no message"):
            await ask(gateways)
        assert await ask(gateways)
        assert one.questions == 2


async def test_an_answer_that_never_comes_is_unknown() -> None:
    async with scripted() as (_, [address]), opened(address, call_s=0.05) as gateways:
        with pytest.raises(WriteUnknown, match="did not answer in time"):
            await ask(gateways)


async def test_without_any_gateway_a_call_is_not_sent() -> None:
    async with opened(free_address(), free_address(), connect_s=0.1) as gateways:
        with pytest.raises(NotWritten, match=r"no gateway of HBase answers: 127\.0\.0\.1:\d+: "):
            await ask(gateways)


async def test_each_call_is_observed_when_it_ends(served: Served) -> None:
    told: list[CallOutcome] = []
    async with opened(served.address, observe=told.append) as gateways:
        await ask(gateways)
        for name in (b"error", b"cut"):
            with pytest.raises(WriteUnknown):
                await ask(gateways, name)
    async with opened(free_address(), connect_s=0.1, observe=told.append) as gateways:
        with pytest.raises(NotWritten):
            await ask(gateways)
    assert [each.kind for each in told] == [None, "told", "cut", "refused"]
    assert {each.call for each in told} == {"exists"}
    assert told[1].message == "java.io.IOException: no"
    assert all(each.seconds >= 0 for each in told)


async def test_a_call_without_an_answer_is_observed_as_silent() -> None:
    told: list[CallOutcome] = []
    async with (
        scripted() as ([one], [address]),
        opened(address, call_s=0.05, observe=told.append) as gateways,
    ):
        assert one.asked.empty()
        with pytest.raises(WriteUnknown):
            await ask(gateways)
    assert [each.kind for each in told] == ["silent"]


async def test_a_call_is_answered_although_its_observer_fails(served: Served) -> None:
    def fail(_: CallOutcome) -> None:
        raise RuntimeError("a bug")

    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with opened(served.address, observe=fail) as gateways:
        assert await ask(gateways)
        assert await ask(gateways)
    assert seen


# The choice of the gateway.


async def test_calls_go_to_the_gateway_with_the_fewest_calls_in_flight() -> None:
    async with scripted(3) as (made, addresses), opened(*addresses, call_s=DEADLINE_S) as gateways:
        answers = [asyncio.get_running_loop().create_future() for _ in made]
        for one, answer in zip(made, answers, strict=True):
            one.answers = [answer]
        calls = [asyncio.create_task(ask(gateways)) for _ in range(6)]
        for one in made:
            for _ in range(2):
                await one.next()
        answers[1].set_result(TRUE)
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        again = asyncio.create_task(ask(gateways))
        await made[1].next()
        assert [one.questions for one in made] == [2, 2, 2], "the call uses the free line"
        for call in (*calls, again):
            call.cancel()
        await asyncio.gather(*calls, again, return_exceptions=True)


async def test_calls_go_to_another_gateway_if_one_is_down(served: Served) -> None:
    async with opened(free_address(), served.address) as gateways:
        for _ in range(4):
            assert await ask(gateways)


async def test_a_gateway_that_failed_gets_no_call_until_it_answers() -> None:
    async with scripted(2) as ([one, two], addresses), opened(*addresses) as gateways:
        one.answers, two.answers = [None], [TRUE] * 1000
        while one.answers:
            failed = asyncio.create_task(ask(gateways))
            await asyncio.wait([failed])
            one.identity = None
        assert isinstance(failed.exception(), WriteUnknown)
        for _ in range(10):
            assert await ask(gateways)
        assert one.asked.qsize() == 1
        one.identity, one.answers = TWO, [TRUE]
        async with asyncio.timeout(DEADLINE_S):
            while one.answers:
                two.answers = [TRUE]
                assert await ask(gateways)


async def test_idle_connections_to_a_gateway_that_failed_are_not_used() -> None:
    async with scripted() as ([one], [address]), opened(address) as gateways:
        first = asyncio.get_running_loop().create_future()
        one.answers = [first, TRUE]
        calls = [asyncio.create_task(ask(gateways)) for _ in range(2)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert [call.result() for call in done] == [True]
        one.answers = [TRUE]
        first.set_result(None)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(map(type, results), key=str) == [bool, module.GatewayFailed]
        assert await ask(gateways)
        assert one.questions == 3


async def test_a_gateway_that_answers_with_errors_is_not_preferred_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DOUBTED_S", 3600.0)
    async with scripted(2) as (made, addresses), opened(*addresses) as gateways:
        for one in made:
            one.answers = [reply("tableExists", io=IDL.TIOError(message="no"))]
        with pytest.raises(WriteUnknown):
            await ask(gateways)
        told, other = sorted(made, key=lambda one: len(one.answers))
        other.answers = [TRUE] * 20
        for _ in range(4):
            assert await ask(gateways)
        assert (told.asked.qsize(), other.asked.qsize()) == (1, 4)


async def test_a_call_waits_until_a_gateway_is_up_again() -> None:
    place = free_address()
    async with opened(place, connect_s=DEADLINE_S) as gateways:
        waiting = asyncio.create_task(ask(gateways))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done, "the first connection is refused meanwhile"
        with serving(place.port):
            assert await waiting


# Turns, cancelled callers, and closing.


@asynccontextmanager
async def one_busy(**options: Any) -> AsyncIterator[tuple[Gateways, Scripted, Any, Any]]:
    """Yield gateways with one connection and a call in flight on it, which ``answer`` answers."""
    async with (
        scripted() as ([one], [address]),
        opened(address, connections_max=1, **options) as gateways,
    ):
        answer = asyncio.get_running_loop().create_future()
        one.answers = [answer]
        call = asyncio.create_task(ask(gateways))
        await one.next()
        yield gateways, one, call, answer
        if not answer.done():
            answer.set_result(None)
        await asyncio.gather(call, return_exceptions=True)


async def test_a_call_that_waits_too_long_for_its_turn_was_not_sent() -> None:
    async with (
        scripted() as ([one], [address]),
        opened(address, connections_max=1, call_s=0.05) as gateways,
    ):
        # The second call begins to wait before the first one is sent, so its wait ends first.
        first, second = (asyncio.create_task(ask(gateways)) for _ in range(2))
        with pytest.raises(NotWritten, match="busy"):
            await second
        with pytest.raises(WriteUnknown):
            await first
        assert one.asked.qsize() == 1


async def test_a_cancelled_call_keeps_its_turn_until_it_is_answered() -> None:
    async with one_busy() as (gateways, one, call, answer):
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        following = asyncio.create_task(ask(gateways))
        await still(one.asked.empty)
        one.answers = [TRUE]
        answer.set_result(reply("tableExists", success=False))
        assert await following is True
        assert one.questions == 1


async def test_a_cancelled_call_in_the_queue_holds_no_turn() -> None:
    async with one_busy() as (gateways, one, call, answer):
        leaving = [asyncio.create_task(ask(gateways)) for _ in range(3)]
        await still(lambda: not any(each.done() for each in leaving))
        for each in leaving:
            each.cancel()
        one.answers = [TRUE] * 2
        answer.set_result(TRUE)
        assert await call
        await asyncio.gather(*leaving, return_exceptions=True)
        assert await ask(gateways)


async def still(holds: Callable[[], bool]) -> None:
    """Let all ready tasks run, and check a condition meanwhile."""
    for _ in range(10):
        await settle(1)
        assert holds()


@pytest.mark.parametrize("before", ["the answer", "the question"])
async def test_closing_ends_a_call_that_is_never_answered(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    async with scripted() as ([one], [address]):
        gateways = Gateways([address], call_s=DEADLINE_S, connect_s=DEADLINE_S)
        if before == "the question":
            one.identity = SILENCE
        asking = asyncio.create_task(ask(gateways))
        if before == "the answer":
            await one.next()
        else:
            await still(lambda: not asking.done())
        async with asyncio.timeout(DEADLINE_S):
            await gateways.close()
            with pytest.raises(WriteUnknown if before == "the answer" else NotWritten):
                await asking
        with pytest.raises(NotWritten, match="closed"):
            await ask(gateways)


async def test_closing_waits_for_the_answer_of_a_call() -> None:
    async with one_busy(call_s=DEADLINE_S) as (gateways, _, call, answer):
        closing = asyncio.create_task(gateways.close())
        await still(lambda: not closing.done())
        answer.set_result(TRUE)
        assert await call
        await asyncio.wait_for(closing, DEADLINE_S)


async def gathered(*calls: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S))


async def test_calls_in_flight_stay_within_their_limit(served: Served) -> None:
    async with opened(served.address, connections_max=3) as gateways:
        assert await gathered(*(ask(gateways) for _ in range(50))) == [True] * 50
        assert len(served.open) == 3


# Memory.


async def test_failed_calls_and_probes_keep_nothing() -> None:
    async def outcome(gateways: Gateways) -> type[TableError] | None:
        try:
            await ask(gateways)
        except TableError as error:
            return type(error)
        return None

    told = reply("tableExists", io=IDL.TIOError(message="no"))
    async with scripted() as ((gateway,), addresses), opened(*addresses) as gateways:
        gateway.answers = [TRUE, told, b"no Thrift", TRUE, None]
        with no_cycle_through_a_traceback():
            assert [await outcome(gateways) for _ in range(5)] == [
                None,
                GatewayFailed,
                GatewayFailed,
                None,
                GatewayFailed,
            ]
        gateway.identity = None
        asked = gateway.questions
        with no_cycle_through_a_traceback():
            assert await outcome(gateways) is NotWritten
            await eventually(lambda: gateway.questions >= asked + 2, lambda: gateway.questions)
        gateway.identity = TWO
