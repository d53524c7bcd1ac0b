"""Callers of Tephra's Thrift port in the mode ``required``: SASL PLAIN, and the action of each call."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest

from broker.access.access_records import AccessRecords
from broker.access.gate import RequiredGate
from broker.access.grants import Grant
from broker.clock import SystemClock
from broker.http.budget import BudgetKind, Budgets
from broker.metrics import Metrics
from broker.operations.operation import Action
from broker.transactions.tephra_callers import ACTIONS, MESSAGE_BYTES_MAX
from broker.transactions.tephra_frames import Idl
from broker.transactions.tephra_server import TephraServer
from tests.kit.serving import in_memory, quiet_port
from tests.unit.tephra.clients import Client, connect
from tests.unit.tephra.fakes import Scripted
from tests.unit.tephra.test_tephra_service import message

INVALID_SIZE, RESET = message("invalidTxSize"), message("resetState")


class World:
    def __init__(self) -> None:
        clock = SystemClock()
        self.access = AccessRecords(in_memory(clock)[1], clock)
        self.script = Scripted()
        self.budgets = Budgets()
        gate = RequiredGate(self.access.rules, clock.now_ms)
        self.server = TephraServer(self.script, self.budgets, Metrics("here"), clock, guard=gate)

    async def client(self, token: str | None = None) -> Client:
        client = await connect(self.server.port)
        if token is not None:
            sasl(client, token)
            assert await client.reader.readexactly(5) == b"\x05\0\0\0\0"
        return client


def sasl(client: Client, token: str, mechanism: bytes = b"PLAIN", status: int = 5) -> None:
    plain = b"\0ann\0" + token.encode()
    for sent, text in ((1, mechanism), (status, plain)):
        client.writer.write(struct.pack(">BI", sent, len(text)) + text)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.access.open()
    await world.server.start("127.0.0.1", quiet_port())
    yield world
    await world.server.close(0)
    await world.access.close()


def test_each_method_names_its_action() -> None:
    assert set(ACTIONS) == Idl().methods
    assert ACTIONS["resetState"] is Action.TRANSACTIONS_RESET


async def test_a_client_without_credentials_may_do_nothing(world: World) -> None:
    client = await world.client()
    for call, method in ((INVALID_SIZE, "invalidTxSize"), (RESET, "resetState")):
        client.send(call)
        assert "credentials" in str(await client.answer(method))
    assert world.script.calls == []
    client.close()


async def test_a_token_gives_the_rights_of_its_principal_until_it_is_revoked(world: World) -> None:
    text, token = await world.access.create_token("ann")
    await world.access.grant(Grant("ann", "transactions_all"))
    client = await world.client(text)
    world.script.answers = [7]
    client.send(INVALID_SIZE)
    assert (await client.answer("invalidTxSize")).success == 7
    client.send(RESET)
    assert "transactions_reset" in str(await client.answer("resetState"))
    assert len(world.script.calls) == 1
    await world.access.revoke_token(token.id)
    client.send(INVALID_SIZE)
    assert "not valid" in str(await client.answer("invalidTxSize"))
    assert len(world.script.calls) == 1
    assert world.budgets.used[BudgetKind.BODY_BYTES] == 0
    client.close()


@pytest.mark.parametrize("mechanism", [b"PLAIN", b"GSSAPI"])
async def test_wrong_credentials_end_the_connection(world: World, mechanism: bytes) -> None:
    client = await world.client()
    sasl(client, "tms_x", mechanism)
    assert (await client.reader.read(1)) == b"\x04"
    assert await client.reader.read()
    client.close()


async def test_a_long_message_of_sasl_ends_the_connection(world: World) -> None:
    client = await world.client()
    client.writer.write(struct.pack(">BI", 1, MESSAGE_BYTES_MAX + 1))
    assert await client.ended()
    client.close()
