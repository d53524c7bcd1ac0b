"""A broker withstands small polls that skip very many messages."""

import pytest

from broker.model import Poll, Snapshot
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, Attacked
from tests.kit.serving import topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_poll_that_skips_very_many_messages(broker: Attacked, topic: str) -> None:
    *invalids, own = sent.pointers(5)
    for pointer in invalids:
        await broker.publish(topic, pointer, 100_000)
    snapshot = Snapshot(transaction_id=own, read_pointer=own - 1, invalids=invalids)
    poll = avro.encode_poll(Poll(snapshot=snapshot))

    async def attack() -> None:
        reply = await broker.ask("POST", topic_path(topic, "poll"), poll, AVRO)
        assert (reply.status, reply.body) == (200, b"\0")

    await broker.withstands(attack, peak_bytes_max=384 * sent.MIB)


@pytest.mark.parametrize(
    ("publishes", "each"),
    [
        (1_000, 1),
        pytest.param(3_000, 1, marks=pytest.mark.nightly),
        pytest.param(3_000, 10, marks=pytest.mark.nightly),
    ],
)
async def test_a_poll_that_skips_small_entries(
    broker: Attacked, topic: str, publishes: int, each: int
) -> None:
    """The messages are in many small entries, one for each publish."""
    *invalids, own = sent.pointers(publishes + 1)
    for pointer in invalids:
        await broker.publish(topic, pointer, each)
    snapshot = Snapshot(transaction_id=own, read_pointer=own - 1, invalids=invalids)
    poll = avro.encode_poll(Poll(snapshot=snapshot))

    async def attack() -> None:
        reply = await broker.ask("POST", topic_path(topic, "poll"), poll, AVRO)
        assert (reply.status, reply.body) == (200, b"\0")

    await broker.withstands(attack, peak_bytes_max=384 * sent.MIB)
