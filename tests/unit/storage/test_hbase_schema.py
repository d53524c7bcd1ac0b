"""Making the tables, against a gateway of Thrift's own bytes."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from broker.config import Durability
from broker.storage.hbase_gateways import IDL, Gateways
from broker.storage.hbase_schema import HBaseAdmin, Schema
from tests.unit.storage.served_gateway import Served, serving


@dataclass
class Bench:
    server: Served
    gateways: Gateways


@pytest.fixture
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
async def bench(server: Served) -> AsyncIterator[Bench]:
    gateways = Gateways([server.address])
    yield Bench(server, gateways)
    await gateways.close()


def test_names() -> None:
    assert Schema().name_of("messages") == "broker_messages"
    assert Schema("prod", "b_").name_of("records") == "prod:b_records"


async def test_what_is_missing_is_made_and_the_second_time_nothing(bench: Bench) -> None:
    admin = HBaseAdmin(bench.gateways, Schema("prod", "b_"))
    names = ["prod:b_messages", "prod:b_payloads", "prod:b_records"]
    assert await admin.missing() == names
    for made in (True, False):
        done = await admin.init(8)
        assert [(each.name, each.made) for each in done] == [
            ("prod", made),
            *((name, made) for name in names),
        ]
        assert [each.regions for each in done] == [None, 8, 8, 1]
        assert not any(each.problems for each in done)
    assert await admin.missing() == []
    await admin.remove()
    assert await admin.missing() == names
    await admin.remove()


@pytest.mark.parametrize(
    ("durability", "thrift"),
    [(Durability.FSYNC, IDL.TDurability.FSYNC_WAL), (Durability.FLUSHED, IDL.TDurability.SYNC_WAL)],
)
async def test_a_table_says_how_durable_it_is(
    bench: Bench, durability: Durability, thrift: int
) -> None:
    await HBaseAdmin(bench.gateways, Schema(durability=durability)).init(1)
    descriptors = [descriptor for descriptor, _ in bench.server.handler.tables.values()]
    assert {each.durability for each in descriptors} == {thrift}
    assert {each.attributes[b"SPLIT_ENABLED"] for each in descriptors} == {b"false"}


def no_splits(descriptor: Any) -> None:
    descriptor.attributes[b"SPLIT_ENABLED"] = b"true"


def no_family(descriptor: Any) -> None:
    descriptor.columns = []


def many_versions(descriptor: Any) -> None:
    descriptor.columns[0].maxVersions = 3


def a_life(descriptor: Any) -> None:
    descriptor.columns[0].timeToLive = 86_400


def no_sync(descriptor: Any) -> None:
    descriptor.durability = IDL.TDurability.ASYNC_WAL


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (no_splits, "SPLIT_ENABLED must be false"),
        (no_family, "no family d"),
        (many_versions, "keeps 3 versions"),
        (a_life, "time to live"),
        (no_sync, "durability"),
    ],
)
async def test_a_table_that_is_not_as_it_must_be_is_told(
    bench: Bench, harm: Any, told: str
) -> None:
    admin = HBaseAdmin(bench.gateways, Schema())
    await admin.init(2)
    harm(bench.server.handler.tables[b"default", b"broker_payloads"][0])
    problems = {each.name: each.problems for each in await admin.init(2)}
    assert told in problems.pop("broker_payloads")[0]
    assert not any(problems.values())
