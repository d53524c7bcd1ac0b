"""The tests of connections, slow readers, drains and last answers, all over TLS."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit import certificates
from tests.kit.serving import Broker, Http, listening, topic_path
from tests.unit.http.test_delivery import *  # noqa: F403
from tests.unit.http.test_drain import *  # noqa: F403
from tests.unit.http.test_inbound import *  # noqa: F403
from tests.unit.http.test_server import *  # noqa: F403


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker()
    broker.server.tls = certificates.serving(certificates.write(tmp_path))
    assert (await broker.call("PUT", topic_path("t"))).status == 200
    yield broker
    await broker.close()


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[Http]:
    async with listening(broker) as client:
        yield client


WRITE_PLAIN_BYTES = (
    "test_bytes_in_the_socket_are_read_before_the_close",
    "test_the_last_answer_arrives_despite_bytes_behind_its_request",
    "test_a_client_that_is_being_accepted_when_the_listener_closes_is_answered",
    "test_a_client_that_connects_until_the_end_is_answered",
    "test_a_client_that_reconnects_does_not_prevent_the_end",
    "test_no_request_of_our_client_is_lost_or_unknown_through_drains",
)
END_BOTH_DIRECTIONS = ("test_the_client_gets_a_408_when_the_node_stops_reading",)
"""The client of these tests answers TLS's end with its own, and then closes."""
for _name in WRITE_PLAIN_BYTES + END_BOTH_DIRECTIONS:
    del globals()[_name]
