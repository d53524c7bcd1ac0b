"""Properties of topics that are large."""

import pytest

from tests.integration.attacks import sent
from tests.kit.attacked import GZIP, JSON, Attacked
from tests.kit.neighbour import CUT
from tests.kit.serving import NAMESPACE, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def test_properties_of_a_hundred_megabytes(broker: Attacked) -> None:
    properties = sent.json_of_properties()

    async def attack() -> None:
        for number in range(15):
            path = topic_path(f"large{number}")
            assert await broker.status("PUT", path, properties, JSON, GZIP) in {400, 413, CUT}
        assert (await broker.ask("GET", f"{NAMESPACE}/topics")).status == 200

    await broker.withstands(attack, peak_bytes_max=384 * sent.MIB)


async def test_properties_of_a_size_that_may_be(broker: Attacked, topic: str) -> None:
    largest, more = ('{"note": "%s"}' % ("a" * count) for count in (60_000, 66_000))
    path = topic_path(topic, "properties")
    assert await broker.status("PUT", path, largest.encode(), JSON) == 200
    assert await broker.status("PUT", path, more.encode(), JSON) in {400, 413}
