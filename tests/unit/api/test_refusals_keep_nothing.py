"""A refused request is freed with its answer: no garbage collection is needed for that."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import pytest

from broker.client import (
    BrokerError,
    Client,
    IdempotencyKeyReused,
    SyncClient,
    TailOptions,
    TopicNotFound,
    Trouble,
)
from broker.clock import SystemClock
from broker.model import Poll
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.storage.table import NotWritten
from broker.wire import avro
from tests.kit.bench import HookedTable
from tests.kit.garbage import no_cycle_through_a_traceback
from tests.kit.serving import Broker, Http, RawHttp, eventually, listening, topic_path
from tests.unit.client.stand_in import Foreign

BODY = b"x" * 10_000
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
PUBLISH, STORE, STAGES = (topic_path("t", each) for each in ("publish", "store", "stages"))
NUMBERED = {"Producer-Id": "p", "Producer-Number": "1"}
KEYED = {"Idempotency-Key": "k"}

Refused = Callable[[Http, HookedTable, Broker], Awaitable[int]]


async def of_another_body(http: Http, *_: Any) -> int:
    await http("POST", PUBLISH, BODY, TEXT | KEYED)
    return (await http("POST", PUBLISH, BODY + b"y", TEXT | KEYED)).status


def published(headers: dict[str, str]) -> Refused:
    async def refused(http: Http, *_: Any) -> int:
        body = json.dumps({"messages": [BODY.decode()], "write_pointer": 1}).encode()
        return (await http("POST", PUBLISH, body, JSON | headers)).status

    return refused


def not_written(headers: dict[str, str]) -> Refused:
    async def refused(http: Http, table: HookedTable, _: Broker) -> int:
        async def fails(*_: object) -> None:
            raise NotWritten("no space left on device")

        table.on("append", fails)
        return (await http("POST", PUBLISH, BODY, TEXT | headers)).status

    return refused


def in_a_stage(headers: dict[str, str]) -> Refused:
    async def refused(http: Http, *_: Any) -> int:
        return (await http("POST", f"{STAGES}/1/store", BODY, TEXT | headers)).status

    return refused


async def published_twice(http: Http, *_: Any) -> int:
    one, two = [(await http("POST", STAGES)).json["stage"] for _ in range(2)]
    body = json.dumps({"stages": [one]}).encode()
    assert (await http("POST", f"{STAGES}/publish", body, JSON)).status == 200
    assert (await http("POST", f"{STAGES}/{one}/store", BODY, TEXT)).status == 409
    both = json.dumps({"stages": [one, two]}).encode()
    replies = await asyncio.gather(
        *(http("POST", f"{STAGES}/publish", both, JSON | more) for more in ({}, KEYED, NUMBERED))
    )
    assert {each.status for each in replies} == {409}
    return 409


async def malformed(http: Http, *_: Any) -> int:
    return (await http("POST", PUBLISH, b'{"mesages": ["' + BODY + b'"]}', JSON)).status


async def not_gzip(http: Http, *_: Any) -> int:
    return (
        await http("POST", PUBLISH, gzip.compress(BODY)[:-9], TEXT | {"Content-Encoding": "gzip"})
    ).status


async def inverted(http: Http, *_: Any) -> int:
    body = json.dumps({"transaction_write_pointer": 1, "rollback_range": BODY.decode()}).encode()
    return (await http("POST", topic_path("t", "rollback"), body, JSON)).status


async def to_no_topic(http: Http, *_: Any) -> int:
    return (await http("POST", topic_path("none", "publish"), BODY, TEXT | KEYED | NUMBERED)).status


async def left_in_the_middle(http: Http, *_: Any) -> int:
    head = f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
    async with RawHttp(http.port) as raw:
        await raw.send(head.encode() + BODY)
    return 400


async def left_unread(http: Http, _: HookedTable, broker: Broker) -> int:
    poll = avro.encode_poll(Poll())
    head = f"POST {topic_path('full', 'poll')} HTTP/1.1\r\nHost: localhost\r\nContent-Type: avro/binary\r\n"
    async with RawHttp(http.port, receive_buffer=4096) as raw:
        await raw.send(f"{head}Content-Length: {len(poll)}\r\n\r\n".encode() + poll)
        await eventually(lambda: any(each.writing_paused for each in broker.server.open), list)
    return 400


@pytest.fixture
async def busy() -> AsyncIterator[tuple[Broker, Http, HookedTable]]:
    clock, table = SystemClock(), HookedTable(MemoryTable())
    logs = Logs(table, clock)
    broker = Broker(clock=clock, stores=(logs, Records(logs.resolver)))
    for topic in ("t", "full"):
        await broker.call("PUT", topic_path(topic))
    for _ in range(200):
        await broker.call("POST", topic_path("full", "publish"), b"x" * 40_000, TEXT)
    async with listening(broker) as http:
        yield broker, http, table
    await broker.close()


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(of_another_body, id="a key of another body"),
        *(
            pytest.param(make(more), id=f"{make.__name__} {name}")
            for make in (published, not_written, in_a_stage)
            for name, more in (("plain", {}), ("keyed", KEYED), ("numbered", NUMBERED))
        ),
        pytest.param(published_twice, id="stages published twice"),
        malformed,
        not_gzip,
        inverted,
        to_no_topic,
        left_in_the_middle,
        left_unread,
    ],
)
async def test_a_refused_request_is_freed_with_its_answer(
    busy: tuple[Broker, Http, HookedTable], refused: Refused
) -> None:
    broker, http, table = busy
    # Once before, for what is made at the first use.
    assert await refused(http, table, broker) >= 400
    with no_cycle_through_a_traceback():
        assert await refused(http, table, broker) >= 400
        await eventually(lambda: not broker.server.busy, lambda: broker.server.busy)


async def test_a_refusal_of_the_client_leaves_no_cycle(
    busy: tuple[Broker, Http, HookedTable],
) -> None:
    _, http, _ = busy
    async with Client(http.url) as client:
        await client.publish("default/t", b"a", idempotency_key="k")
        with no_cycle_through_a_traceback():
            for _ in range(2):
                with pytest.raises(TopicNotFound):
                    await client.publish("default/none", BODY, coalesce=False)
                with pytest.raises(IdempotencyKeyReused):
                    await client.publish("default/t", BODY, idempotency_key="k")
                with pytest.raises(TopicNotFound):
                    await client.stats("default/none")


Call = Callable[[Client], Awaitable[object]]


async def published_plainly(client: Client) -> None:
    await client.publish("default/t", BODY, coalesce=False)


async def published_together(client: Client) -> None:
    await client.publish("default/t", BODY)


async def published_under_a_key(client: Client) -> None:
    await client.publish("default/t", BODY, idempotency_key="k")


async def read(client: Client) -> None:
    await client.poll("default/t")


async def looked_at(client: Client) -> None:
    await client.browse("default/t")


async def tailed(client: Client) -> None:
    async for _ in client.tail("default/t", options=TailOptions(give_up_after_s=0.02, wait_s=0)):
        pass


async def without_room(client: Client) -> None:
    """The first one fills the room, the second waits for it."""
    publishes = [asyncio.create_task(client.publish("default/t", BODY)) for _ in range(2)]
    await asyncio.wait(publishes)
    try:
        publishes.pop().result()
    finally:
        publishes.clear()


async def stored_in_a_transaction(client: Client) -> None:
    async with client.transaction(service=Foreign()) as transaction:
        await transaction.store("default/t", BODY)


async def published_in_a_transaction(client: Client) -> None:
    async with client.transaction(service=Foreign()) as transaction:
        await transaction.publish("default/t", BODY)


async def in_a_transaction(client: Client) -> None:
    async with client.transaction() as transaction:
        await transaction.publish("default/t", BODY)


async def in_transactions(client: Client) -> None:
    await client.in_transaction(lambda each: each.publish("default/t", BODY), attempts_max=2)


CALLS = [
    published_plainly,
    published_together,
    published_under_a_key,
    read,
    looked_at,
    tailed,
    without_room,
    stored_in_a_transaction,
    published_in_a_transaction,
    in_a_transaction,
    in_transactions,
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_fails_after_retries_leaves_no_cycle(call: Call) -> None:
    troubles = []

    def note(trouble: Trouble) -> None:
        troubles.append(trouble.left_s)
        raise ValueError("the listener fails, too")

    await fails_without_a_cycle("http://127.0.0.1:1", call, note)
    assert troubles, "it was retried"


@contextmanager
def deaf() -> Iterator[str]:
    """A port at which connections wait for ever, as the queue of the listener is full."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_whose_time_is_over_leaves_no_cycle(call: Call) -> None:
    with deaf() as url:
        await fails_without_a_cycle(url, call, lambda _: None)


def test_a_blocking_client_leaves_no_cycle() -> None:
    with SyncClient("http://127.0.0.1:1", deadline_s=0.05, retry_delay_max_s=0.002) as client:
        for looked in (nullcontext, no_cycle_through_a_traceback):
            with looked():
                failed = client.publish_later("default/t", BODY).exception(10)
                assert isinstance(failed, BrokerError)
                del failed
                with pytest.raises(BrokerError):
                    client.poll("default/t")


async def fails_without_a_cycle(
    url: str, call: Call, on_trouble: Callable[[Trouble], None]
) -> None:
    async with Client(
        url,
        on_trouble=on_trouble,
        deadline_s=0.05,
        retry_delay_min_s=0.001,
        retry_delay_max_s=0.002,
        later_messages_max=1,
    ) as client:
        # Once before, for what is made at the first use.
        for looked in (nullcontext, no_cycle_through_a_traceback):
            with looked(), pytest.raises(BrokerError):
                await call(client)
