"""A repetition is answered as done only if its own transaction has the effect: through the client and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.client import BrokerError, Client, Published
from broker.errors import Fenced
from broker.model import PublishRequest, TopicId
from broker.wire.avro import encode_publish_request
from tests.kit.serving import Broker, Http, topic_path

T = "default/t"
Way = Callable[[Client, int], Awaitable[Published]]


async def by_number(client: Client, pointer: int) -> Published:
    return await client.publish(T, ["a", "b"], pointer=pointer, producer=("p", 1))


async def by_key(client: Client, pointer: int) -> Published:
    return await client.publish(T, ["a", "b"], pointer=pointer, idempotency_key="k")


class ByStages:
    """Publish the same two stages each time, with or without a producer's number."""

    def __init__(self, *, is_numbered: bool) -> None:
        self.producer = ("p", 1) if is_numbered else None
        self.stages: list[str] = []

    async def __call__(self, client: Client, pointer: int) -> Published:
        for message in () if self.stages else ("a", "b"):
            async with client.stage(T) as stage:
                await stage.store(message)
            self.stages.append(stage.id)
        return await client.publish_stages(T, self.stages, pointer=pointer, producer=self.producer)


WAYS: dict[str, Callable[[], Way]] = {
    "number": lambda: by_number,
    "key": lambda: by_key,
    "stages": lambda: ByStages(is_numbered=False),
    "numbered stages": lambda: ByStages(is_numbered=True),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def pointer_now(broker: Broker) -> int:
    return broker.clock.now_ms() * 1_000_000


def let_go(broker: Broker) -> None:
    """Let the leader end, so that the next one reads storage."""
    leader = broker.topics.leaders.states[TopicId("default", "t")].leader
    assert leader is not None
    leader.end(Fenced("let go"))


@EVERY_WAY
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("rolled_back", [False, True])
async def test_another_transactions_repetition_is_refused_and_names_the_first(
    http: Http, broker: Broker, way: Callable[[], Way], anew: bool, rolled_back: bool
) -> None:
    publish, a = way(), pointer_now(broker)
    async with Client(http.url) as client:
        first = await publish(client, a)
        assert first.first_id is not None
        if rolled_back:
            await client.rollback(T, first)
        if anew:
            let_go(broker)
        with pytest.raises(
            BrokerError, match=f"{a}, as messages {first.first_id.hex()}"
        ) as refused:
            await publish(client, a + 1)
        told = (refused.value.code, refused.value.http_status, refused.value.outcome)
        assert told == ("already_published", 409, "refused")
        page = await client.browse(T)
        assert {row.write_pointer for row in page.messages} == {a}, "nothing was stored"


@EVERY_WAY
@pytest.mark.parametrize("anew", [False, True])
async def test_a_repetition_in_its_own_transaction_is_refused_once_it_was_rolled_back(
    http: Http, broker: Broker, way: Callable[[], Way], anew: bool
) -> None:
    publish, a = way(), pointer_now(broker)
    async with Client(http.url) as client:
        first = await publish(client, a)
        again = await publish(client, a)
        assert (again.replayed, again.first_id) == (True, first.first_id)
        await client.rollback(T, first)
        if anew:
            let_go(broker)
        with pytest.raises(BrokerError, match="rolled back") as refused:
            await publish(client, a)
        assert refused.value.code == "already_published"


@pytest.mark.parametrize("anew", [False, True])
async def test_the_payloads_of_a_transaction_are_not_published_again_once_rolled_back(
    http: Http, broker: Broker, anew: bool
) -> None:
    a = pointer_now(broker)
    async with Client(http.url) as client:
        await client.store(T, "a", pointer=a, idempotency_key="s")
        first = await client.publish_stored(T, pointer=a)
        assert (await client.publish_stored(T, pointer=a)).replayed
        await client.store(T, "a", pointer=a, idempotency_key="s")
        await client.rollback(T, first)
        if anew:
            let_go(broker)
        for repeated in (
            client.publish_stored(T, pointer=a),
            client.store(T, "a", pointer=a, idempotency_key="s"),
        ):
            with pytest.raises(BrokerError, match="rolled back") as refused:
                await repeated
            assert refused.value.code == "already_published"


@pytest.mark.parametrize("anew", [False, True])
async def test_a_number_below_the_last_is_judged_by_the_run_of_its_transaction(
    http: Http, broker: Broker, anew: bool
) -> None:
    """The ids of a lower number are forgotten; those of its run of numbers in one transaction are not."""
    a = pointer_now(broker)
    b = a + 1

    async def publish(number: int, pointer: int | None) -> Published:
        return await client.publish(T, f"{number}", pointer=pointer, producer=("p", number))

    async with Client(http.url) as client:
        for number in (1, 2):
            await publish(number, a)
        in_b = [await publish(number, b) for number in (4, 6, 7)]
        if anew:
            let_go(broker)
        for number in (4, 5, 6, 7):
            assert (await publish(number, b)).replayed, "5 came too late: it was skipped"
        for number, pointer in ((7, a), (6, a), (6, None), (2, a), (2, b), (1, None)):
            with pytest.raises(BrokerError, match=str(b)) as refused:
                await publish(number, pointer)
            assert refused.value.code == "already_published"
        await client.rollback(T, in_b[0])
        assert (await publish(7, b)).replayed, "number 7 was not rolled back"
        for number in (4, 6):
            with pytest.raises(BrokerError, match="rolled back"):
                await publish(number, b)


async def test_numbers_without_a_transaction_are_duplicates_as_before(
    http: Http, broker: Broker
) -> None:
    async with Client(http.url) as client:
        for number in (5, 9):
            await client.publish(T, f"{number}", producer=("p", number))
        let_go(broker)
        for number in (3, 5, 7, 9):
            assert (await client.publish(T, "x", producer=("p", number))).replayed


async def test_a_key_in_flight_is_not_joined_by_another_transaction(
    http: Http, broker: Broker
) -> None:
    a = pointer_now(broker)
    async with Client(http.url) as client:
        answers = await asyncio.gather(
            by_key(client, a), by_key(client, a + 1), by_key(client, a), return_exceptions=True
        )
    assert isinstance(answers[1], BrokerError)
    assert answers[1].code == "already_published"
    assert isinstance(answers[0], Published)
    assert isinstance(answers[2], Published)


async def test_a_duplicate_leaves_no_number_and_no_key_behind(http: Http, broker: Broker) -> None:
    """Stages that were published under number 1 store nothing under number 2: number 2 is still free."""
    publish = ByStages(is_numbered=True)
    async with Client(http.url) as client:
        await publish(client, pointer_now(broker))
        a = pointer_now(broker)
        publish = ByStages(is_numbered=False)
        await publish(client, a)
        publish.producer = ("p", 2)
        assert (await publish(client, a)).replayed
        assert not (await client.publish(T, "new", producer=("p", 2))).replayed


async def test_over_http_the_refusal_is_409(broker: Broker) -> None:
    path, a = topic_path("t", "publish"), pointer_now(broker)
    headers = {"Content-Type": "avro/binary", "Producer-Id": "p", "Producer-Number": "1"}
    statuses = []
    for pointer in (a, a, a + 1):
        body = encode_publish_request(PublishRequest(pointer, [b"a"]))
        reply = await broker.call("POST", path, body, headers)
        statuses.append((reply.status, reply.headers.get("Broker-Error")))
    assert statuses == [(200, None), (200, None), (409, "already_published")]
