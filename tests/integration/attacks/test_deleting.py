"""A topic is deleted while clients write to it."""

import asyncio

import pytest

from broker.model import PublishRequest
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, Attacked, answer, push, request
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 120.0


async def test_a_store_beside_a_delete_is_done_or_refused(broker: Attacked) -> None:
    """If a store certainly has no effect, its outcome is *refused*, not *unknown*."""
    path = topic_path("passing")
    store = avro.encode_publish_request(PublishRequest(sent.pointers(1)[0], [b"x"] * 50))
    seen: set[int] = set()
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(100):
            assert await broker.status("PUT", path) == 200
            async with RawHttp(broker.port) as one, RawHttp(broker.port) as other:
                await push(one, request("POST", topic_path("passing", "store"), store, AVRO) * 3)
                await push(other, request("DELETE", path))
                for _ in range(3):
                    reply = await answer(one)
                    assert reply is not None
                    seen.add(reply.status)
                reply = await answer(other)
                assert reply is not None
                assert reply.status == 200
    assert seen <= {200, 404, 409, 503}
