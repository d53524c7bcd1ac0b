"""A broker and its neighbour for each file of tests; each test uses its own topics."""

import re
from collections.abc import Iterator

import pytest

from tests.kit.attacked import Attacked, attacked


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(tmp_path_factory.mktemp("attacked") / "data") as running:
        yield running


@pytest.fixture
async def topic(broker: Attacked, request: pytest.FixtureRequest) -> str:
    """A new topic."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:80]
    await broker.create(name)
    return name
