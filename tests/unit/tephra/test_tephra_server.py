"""Connections of Tephra's clients, over loopback: order, bounds, refusals, and the end."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
import structlog

from broker.clock import SystemClock
from broker.errors import TransactionNotInProgress
from broker.http.budget import DEFAULTS, Bounds, BudgetKind, Budgets
from broker.metrics import Metrics
from broker.model import Snapshot
from broker.transactions import tephra_connection, tephra_frames, tephra_server
from broker.transactions.tephra_server import TephraServer
from tests.kit.bench import settle
from tests.kit.serving import eventually, quiet_port
from tests.unit.tephra.clients import DEADLINE_S, Client, connect
from tests.unit.tephra.fakes import Scripted
from tests.unit.tephra.test_tephra_service import message


class World:
    def __init__(self) -> None:
        self.script = Scripted()
        self.budgets = Budgets()
        self.metrics = Metrics("here")
        self.server = TephraServer(self.script, self.budgets, self.metrics, SystemClock())
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = await connect(self.server.port)
        self.clients.append(client)
        return client

    async def until(self, happens: Callable[[], object]) -> None:
        await eventually(happens, lambda: (self.script.calls, dict(self.budgets.used)), DEADLINE_S)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.server.start("127.0.0.1", quiet_port())
    yield world
    for client in world.clients:
        client.close()
    await world.server.close(1)


def reset(client: Client) -> None:
    """End a client so that the server hears of it at once."""
    connected = client.writer.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


INVALID_SIZE = message("invalidTxSize")


async def test_calls_of_a_connection_are_answered_in_order(world: World) -> None:
    gate = asyncio.get_running_loop().create_future()
    world.script.answers = [lambda: gate, 2, 3]
    client = await world.connect()
    client.send(INVALID_SIZE, INVALID_SIZE, INVALID_SIZE)
    other = await world.connect()
    await world.until(lambda: len(world.script.calls) == 1)
    world.script.answers.insert(0, 9)
    other.send(INVALID_SIZE)
    assert (await other.answer("invalidTxSize")).success == 9
    gate.set_result(1)
    assert [(await client.answer("invalidTxSize")).success for _ in range(3)] == [1, 2, 3]


async def test_a_call_may_come_in_pieces(world: World) -> None:
    world.script.answers = [5]
    client = await world.connect()
    frame = struct.pack(">i", len(INVALID_SIZE)) + INVALID_SIZE
    ends = [1, 4, 5, len(frame) - 1]
    for start, end in pairwise([0, *ends]):
        client.writer.write(frame[start:end])
        await world.until(lambda end=end: world.budgets.used[BudgetKind.BODY_BYTES] == end)
    client.writer.write(frame[-1:])
    assert (await client.answer("invalidTxSize")).success == 5


async def test_an_unknown_method_is_an_error_and_the_connection_goes_on(world: World) -> None:
    client = await world.connect()
    client.send(INVALID_SIZE.replace(b"invalidTxSize", b"invalidTxSizf"), INVALID_SIZE)
    world.script.answers = [5]
    assert (await client.answer("invalidTxSizf")).type == 1
    assert (await client.answer("invalidTxSize")).success == 5


async def test_malformed_arguments_are_an_error_and_end_the_connection(world: World) -> None:
    client = await world.connect()
    with structlog.testing.capture_logs() as lines:
        client.send(INVALID_SIZE + b"more")
        assert (await client.answer("invalidTxSize")).type == 7
        assert await client.ended()
    assert [line["event"] for line in lines] == ["thrift connection refused"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", tephra_frames.FRAME_BYTES_MAX + 1),
        struct.pack(">i", -1),
        bytes(4),
        struct.pack(">i", 5) + b"hello",
    ],
)
async def test_bytes_that_are_no_call_end_the_connection(world: World, sent: bytes) -> None:
    client = await world.connect()
    with structlog.testing.capture_logs() as lines:
        client.writer.write(sent)
        assert await client.ended()
    assert [line["event"] for line in lines] == ["thrift connection refused"]
    assert not world.script.calls


async def test_a_frame_must_come_whole_in_time(world: World) -> None:
    world.server.frame_s = 0.05
    client = await world.connect()
    client.writer.write(struct.pack(">i", 100) + b"x")
    assert await client.ended()
    assert not world.budgets.used[BudgetKind.BODY_BYTES]


async def test_held_bytes_are_counted_and_given_back(world: World) -> None:
    client = await world.connect()
    client.writer.write(struct.pack(">i", 100) + b"x" * 10)
    await world.until(lambda: world.budgets.used[BudgetKind.BODY_BYTES] == 14)
    client.close()
    await world.until(lambda: not world.budgets.used[BudgetKind.BODY_BYTES])
    client = await world.connect()
    gate = asyncio.get_running_loop().create_future()
    world.script.answers = [lambda: gate]
    client.send(message("canCommitOrThrow", tx=1, changes=[b"a", b"b"]))
    await world.until(lambda: world.script.calls)
    assert world.budgets.used[BudgetKind.ITEMS] == 2
    gate.set_result(None)
    await client.answer("canCommitOrThrow")
    await world.until(lambda: not world.budgets.used[BudgetKind.ITEMS])
    assert not world.budgets.used[BudgetKind.BODY_BYTES]


async def test_a_waiting_call_is_given_up_with_its_connection(world: World) -> None:
    world.server.turns = asyncio.Semaphore(0)
    client = await world.connect()
    client.send(INVALID_SIZE)
    await world.until(lambda: any(each.in_use for each in world.server.open))
    (connection,) = world.server.open
    reset(client)
    await world.until(lambda: not world.server.open and not connection.in_use)
    assert not world.script.calls


async def test_a_connection_over_its_budget_ends(world: World) -> None:
    world.budgets.bounds = {**DEFAULTS, BudgetKind.BODY_BYTES: Bounds(100, 100, 100)}
    client = await world.connect()
    client.writer.write(struct.pack(">i", 1000) + bytes(200))
    assert await client.ended()


async def test_little_is_held_behind_a_call(world: World) -> None:
    gate = asyncio.get_running_loop().create_future()
    begun = Snapshot(transaction_id=7, read_pointer=5)
    world.script.answers = [lambda: gate, *[begun] * 20]
    client = await world.connect()
    client.send(INVALID_SIZE)
    await world.until(lambda: world.script.calls)
    large = message("startShortClientId", clientId="x" * 200_000)
    client.send(*[large] * 20)
    await world.until(
        lambda: world.budgets.used[BudgetKind.BODY_BYTES] > tephra_connection.BEHIND_BYTES_MAX
    )
    for _ in range(200):
        await settle()  # A socket that is still read shows: 4 MB wait in it.
    assert world.budgets.used[BudgetKind.BODY_BYTES] < 1_000_000
    gate.set_result(1)
    assert (await client.answer("invalidTxSize")).success == 1
    for _ in range(20):
        await client.answer("startShortClientId")


async def test_connections_are_bounded_and_the_idle_make_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.connections_max = 1
    first = await world.connect()
    await world.until(lambda: world.server.open)
    second = await world.connect()
    assert await second.ended()
    monkeypatch.setattr(tephra_server, "IDLE_S_LEAST", 0.0)
    third = await world.connect()
    assert await first.ended()
    world.script.answers = [5]
    third.send(INVALID_SIZE)
    assert (await third.answer("invalidTxSize")).success == 5


async def test_one_caller_leaves_a_quarter_of_the_connections_to_others(world: World) -> None:
    world.server.connections_max = 4
    mine = [await world.connect() for _ in range(3)]
    await world.until(lambda: len(world.server.open) == 3)
    assert await (await world.connect()).ended()
    other = await connect(world.server.port, "127.0.0.2")
    world.clients.append(other)
    await world.until(lambda: len(world.server.open) == 4)
    reset(mine[0])
    await world.until(lambda: len(world.server.open) == 3)
    again = await world.connect()
    world.script.answers = [5, 6]
    for client in (other, again):
        client.send(INVALID_SIZE)
    answers = [(await client.answer("invalidTxSize")).success for client in (other, again)]
    assert sorted(answers) == [5, 6]


async def test_the_number_of_calls_in_flight_is_bounded(world: World) -> None:
    world.server.turns = asyncio.Semaphore(1)
    gate = asyncio.get_running_loop().create_future()
    world.script.answers = [lambda: gate, 2]
    first, second = await world.connect(), await world.connect()
    first.send(INVALID_SIZE)
    await world.until(lambda: world.script.calls)
    second.send(INVALID_SIZE)
    await world.until(lambda: all(each.in_use for each in world.server.open))
    assert len(world.script.calls) == 1
    gate.set_result(1)
    assert (await second.answer("invalidTxSize")).success == 2


async def test_a_stop_answers_the_calls_that_were_read(world: World) -> None:
    gate = asyncio.get_running_loop().create_future()
    world.script.answers = [lambda: gate, 2]
    busy, begun, idle = [await world.connect() for _ in range(3)]
    busy.send(INVALID_SIZE)
    frame = struct.pack(">i", len(INVALID_SIZE)) + INVALID_SIZE
    begun.writer.write(frame[:9])
    await world.until(lambda: sum(each.in_use for each in world.server.open) == 2)
    stopping = asyncio.ensure_future(world.server.close(DEADLINE_S))
    assert await idle.ended()
    with pytest.raises(ConnectionRefusedError):
        await world.connect()
    begun.writer.write(frame[9:])
    gate.set_result(1)
    answers = {(await each.answer("invalidTxSize")).success for each in (busy, begun)}
    assert answers == {1, 2}
    assert await busy.ended()
    assert await begun.ended()
    await stopping


async def test_a_stop_does_not_wait_for_ever(world: World) -> None:
    gate = asyncio.get_running_loop().create_future()
    world.script.answers = [lambda: gate]
    client = await world.connect()
    client.send(INVALID_SIZE)
    await world.until(lambda: world.script.calls)
    await world.server.close(0.05)
    assert await client.ended()
    assert gate.cancelled()


@pytest.mark.parametrize("resets", [True, False])
async def test_a_client_that_lost_the_answer_to_its_commit_gets_it_again(
    world: World, *, resets: bool
) -> None:
    gate = asyncio.get_running_loop().create_future()
    world.script.answers = [lambda: gate]
    client = await world.connect()
    client.send(message("commitOrThrow", txId=7, wp=7))
    await world.until(lambda: world.script.calls)
    if resets:
        reset(client)
    else:
        client.writer.transport.abort()
    await world.until(lambda: not resets or not world.server.open)
    gate.set_result(None)
    await world.until(lambda: not world.server.open)
    assert await is_committed_again(world, 7)


async def test_only_the_last_answer_of_a_connection_may_not_have_arrived(world: World) -> None:
    client = await world.connect()
    client.send(message("commitOrThrow", txId=7, wp=7))
    await client.answer("commitOrThrow")
    client.send(message("commitOrThrow", txId=8, wp=8))
    await client.answer("commitOrThrow")
    client.close()
    await world.until(lambda: not world.server.open)
    assert await is_committed_again(world, 8)
    assert not await is_committed_again(world, 7)


async def is_committed_again(world: World, transaction: int) -> bool:
    """Repeat a commit that was done, on a new connection. Return whether the answer is that it was done."""
    world.script.answers = [
        TransactionNotInProgress("It is over."),
        Snapshot(transaction_id=0, read_pointer=transaction),
    ]
    client = await world.connect()
    client.send(message("commitOrThrow", txId=transaction, wp=transaction))
    return (await client.answer("commitOrThrow")).notInProgress is None


async def test_calls_are_counted(world: World) -> None:
    client = await world.connect()
    client.send(INVALID_SIZE)
    world.script.answers = [5]
    await client.answer("invalidTxSize")
    await world.until(lambda: b'kind="thrift_invalidTxSize"' in world.metrics.render())
