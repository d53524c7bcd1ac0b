from collections.abc import AsyncIterator

import pytest

from tests.kit.serving import Broker, Http, listening, topic_path


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """The HTTP interface over storage in memory, with a topic ``t``."""
    broker = Broker()
    assert (await broker.call("PUT", topic_path("t"))).status == 200
    yield broker
    await broker.close()


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[Http]:
    """A client of the same broker, which listens on a port."""
    async with listening(broker) as client:
        yield client
