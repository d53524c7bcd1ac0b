"""A plugin of pytest, which finds it by itself: a real broker for tests. It loads the broker when a test asks for one.

::

    def test_an_order_is_published(broker_client):
        broker_client.create_topic("orders")
        shop.order(broker_client, "bread")
        assert [each.payload for each in broker_client.poll("orders")] == [b"bread"]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.client import SyncClient


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real node, which this test session has to itself: on a free port, with an empty data folder."""
    try:
        from broker.testing.broker_process import BrokerProcess  # noqa: PLC0415 - It needs an extra.
    except ModuleNotFoundError as error:
        pytest.fail(
            f"The fixture broker_url needs {error.name}: pip install 'tms-broker[server]'.",
            pytrace=False,
        )
    folder = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(folder, own_settings=True) as broker:
        yield broker.url


@pytest.fixture
def broker_client(broker_url: str) -> Iterator[SyncClient]:
    """A client of the node at ``broker_url``, for tests that are not asynchronous; these make a ``Client`` of their own."""
    from broker.client import SyncClient  # noqa: PLC0415 - Loaded when a test asks for it.

    with SyncClient(broker_url) as client:
        yield client
