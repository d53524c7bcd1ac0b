"""Creating and checking the tables, with the fake gateway."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from broker.config.sections import Durability
from broker.errors import StorageCorrupt, Unavailable
from broker.storage.hbase.gateways import Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema, salt_of
from broker.storage.table import Space
from tests.unit.storage.hbase.fake import IDL, Served, serving


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
    assert Schema().name_of(Space.MESSAGES) == "broker_messages"
    assert Schema("prod", "b_").name_of(Space.RECORDS) == "prod:b_records"


def test_all_keys_of_a_topic_share_a_salt_and_topics_spread_over_many() -> None:
    assert salt_of(b"ns:t:") == salt_of(b"ns:t:\0\0\0\1rest:of:it") == b"\xdd"
    assert len({salt_of(b"ns:t%d:" % n) for n in range(2000)}) > 200
    with pytest.raises(ValueError, match="not found"):
        salt_of(b"ns:t")


async def test_init_creates_the_missing_tables_and_a_second_init_creates_none(bench: Bench) -> None:
    admin = HBaseAdmin(bench.gateways, Schema("prod", "b_"))
    names = ["prod:b_messages", "prod:b_payloads", "prod:b_records"]
    with pytest.raises(Unavailable, match=f"no table {', '.join(names)}. .*broker storage init"):
        await admin.check()
    for made in (True, False):
        done = await admin.init(8)
        assert [(each.name, each.made) for each in done] == [
            ("prod", made),
            *((name, made) for name in names),
        ]
        assert [each.regions for each in done] == [None, 8, 8, 1]
        assert not any(each.problems for each in done)
    await admin.check()
    for _ in range(2):
        await admin.remove()
        with pytest.raises(Unavailable):
            await admin.check()


@pytest.mark.parametrize(
    ("durability", "thrift"),
    [(Durability.FSYNC, IDL.TDurability.FSYNC_WAL), (Durability.FLUSHED, IDL.TDurability.SYNC_WAL)],
)
async def test_tables_are_created_with_the_required_settings(
    bench: Bench, durability: Durability, thrift: int
) -> None:
    await HBaseAdmin(bench.gateways, Schema(durability=durability)).init(1)
    descriptors = [descriptor for descriptor, _ in bench.server.hbase.descriptors.values()]
    assert {each.durability for each in descriptors} == {thrift}
    assert {each.attributes[b"SPLIT_ENABLED"] for each in descriptors} == {b"false"}
    assert {each.attributes[b"BROKER_FORMAT"] for each in descriptors} == {b"5"}
    for each in descriptors:
        assert [(family.name, family.maxVersions) for family in each.columns] == [
            (b"h", 1),
            (b"e", 1),
        ]


def no_splits(descriptor: Any) -> None:
    descriptor.attributes[b"SPLIT_ENABLED"] = b"true"


def no_family(descriptor: Any) -> None:
    del descriptor.columns[1]


def many_versions(descriptor: Any) -> None:
    descriptor.columns[0].maxVersions = 3


def a_life(descriptor: Any) -> None:
    descriptor.columns[0].timeToLive = 86_400


def no_sync(descriptor: Any) -> None:
    descriptor.durability = IDL.TDurability.ASYNC_WAL


def no_format(descriptor: Any) -> None:
    del descriptor.attributes[b"BROKER_FORMAT"]


def other_format(descriptor: Any) -> None:
    descriptor.attributes[b"BROKER_FORMAT"] = b"6"


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (no_splits, "SPLIT_ENABLED must be false"),
        (no_family, "no family e"),
        (many_versions, "family h keeps 3 versions"),
        (a_life, "time to live of 86400 s"),
        (no_sync, "durability"),
        (no_format, "data of an unknown format"),
    ],
)
async def test_a_table_with_wrong_settings_is_reported(bench: Bench, harm: Any, told: str) -> None:
    admin = HBaseAdmin(bench.gateways, Schema())
    await admin.init(2)
    harm(bench.server.hbase.descriptors[b"default", b"broker_payloads"][0])
    problems = {each.name: each.problems for each in await admin.init(2)}
    (problem,) = problems.pop("broker_payloads")
    assert told in problem
    assert not any(problems.values())


@pytest.mark.parametrize(
    ("harm", "found"), [(no_format, "an unknown format"), (other_format, "format 6")]
)
async def test_another_format_is_refused_with_advice(bench: Bench, harm: Any, found: str) -> None:
    admin = HBaseAdmin(bench.gateways, Schema())
    await admin.init(2)
    harm(bench.server.hbase.descriptors[b"default", b"broker_messages"][0])
    with pytest.raises(StorageCorrupt) as caught:
        await admin.check()
    assert f"broker_messages holds data of {found}" in caught.value.message
    assert "another hbase_table_prefix" in caught.value.message


async def test_tables_are_refused_for_their_format_although_one_is_missing(
    bench: Bench,
) -> None:
    admin = HBaseAdmin(bench.gateways, Schema())
    await admin.init(2)
    descriptors = bench.server.hbase.descriptors
    no_format(descriptors[b"default", b"broker_payloads"][0])
    del descriptors[b"default", b"broker_messages"]
    with pytest.raises(StorageCorrupt):
        await admin.check()
