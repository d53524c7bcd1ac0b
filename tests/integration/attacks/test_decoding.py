"""A broker withstands bodies that are small on the wire and need much time or memory to decode."""

import pytest

from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, GZIP, JSON, Attacked
from tests.kit.serving import topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def test_a_snapshot_with_a_list_of_empty_structs(broker: Attacked, topic: str) -> None:
    body = sent.poll_of_empty_structs()

    async def attack() -> None:
        assert await broker.status("POST", topic_path(topic, "poll"), body, AVRO, GZIP) in {
            400,
            413,
        }

    await broker.withstands(attack, peak_bytes_max=320 * sent.MIB)


async def test_a_snapshot_with_three_million_pointers(broker: Attacked, topic: str) -> None:
    body = sent.poll_of_pointers(3_000_000)

    async def attack() -> None:
        assert await broker.status("POST", topic_path(topic, "poll"), body, AVRO, GZIP) in {
            200,
            413,
        }

    await broker.withstands(attack, peak_bytes_max=256 * sent.MIB)


async def test_a_list_of_empty_texts_in_json(broker: Attacked, topic: str) -> None:
    body = sent.json_of_empty_strings()

    async def attack() -> None:
        assert await broker.status("POST", topic_path(topic, "publish"), body, JSON, GZIP) in {
            400,
            413,
        }

    await broker.withstands(attack, peak_bytes_max=384 * sent.MIB)


async def test_a_long_text_in_json_with_one_wide_character(broker: Attacked, topic: str) -> None:
    body = sent.json_of_one_text()

    async def attack() -> None:
        assert await broker.status("POST", topic_path(topic, "publish"), body, JSON, GZIP) in {
            200,
            413,
        }

    await broker.withstands(attack, peak_bytes_max=640 * sent.MIB)
