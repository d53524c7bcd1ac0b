"""A broker withstands very many topics, and a topic with very many payload logs."""

import asyncio

import pytest

from broker.model import PublishRequest
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, Attacked, request
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 240.0
AT_ONCE = 500
"""The number of requests sent on a connection before the first answer is read."""
COLLECTED_S_MAX = 0.05
"""A full collection of garbage passes over the objects of 1,000 open logs: 10 ms on a quiet core, 50 beside other tests."""
CONNECTIONS = 16
"""The number of connections: concurrent changes share writes to the disk."""


async def all_done(broker: Attacked, requests: list[bytes]) -> None:
    """Send requests on some connections; all must succeed."""
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for number in range(CONNECTIONS):
            tasks.create_task(done_in_turn(broker, requests[number::CONNECTIONS]))


async def done_in_turn(broker: Attacked, requests: list[bytes]) -> None:
    """Send pipelined requests on one connection; all must succeed."""
    async with RawHttp(broker.port) as raw:
        for first in range(0, len(requests), AT_ONCE):
            some = requests[first : first + AT_ONCE]
            await raw.send(b"".join(some))
            for _ in some:
                assert (await raw.reply()).status == 200


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.nightly)])
@pytest.mark.timeout(600)
async def test_very_many_topics_are_listed(broker: Attacked, count: int) -> None:
    namespace = f"/v1/namespaces/many{count}"
    await all_done(
        broker, [request("PUT", f"{namespace}/topics/t{number}") for number in range(count)]
    )

    async def attack() -> None:
        reply = await broker.ask("GET", f"{namespace}/topics")
        assert reply.status == 200
        assert reply.body.count(b",") == count - 1

    await broker.withstands(attack, peak_bytes_max=384 * sent.MIB)


@pytest.mark.parametrize("count", [1_000, pytest.param(50_000, marks=pytest.mark.nightly)])
@pytest.mark.timeout(600)
async def test_figures_of_very_many_payload_logs(broker: Attacked, topic: str, count: int) -> None:
    stores = [
        request(
            "POST",
            topic_path(topic, "store"),
            avro.encode_publish_request(PublishRequest(pointer, [b"x"])),
            AVRO,
        )
        for pointer in sent.pointers(count)
    ]
    await all_done(broker, stores)

    async def attack() -> None:
        assert (await broker.ask("GET", topic_path(topic, "stats"))).status == 200

    await broker.withstands(attack, peak_bytes_max=384 * sent.MIB, blocked_s_max=COLLECTED_S_MAX)
