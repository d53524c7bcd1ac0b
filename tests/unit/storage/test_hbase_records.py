"""How a record's compare-and-set is resolved when its answer is none."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.clock import SystemClock
from broker.errors import OutcomeUnknown, StorageCorrupt
from broker.storage.cells import CONTROL_COLUMN, Cell, RowCells
from broker.storage.hbase_records import HBaseRecordStore, _encode
from broker.storage.hbase_schema import Schema
from tests.unit.storage.fake_hbase import FakeGateways, lie, lost_answer, not_done


@pytest.fixture
def gateway() -> FakeGateways:
    return FakeGateways()


@pytest.fixture
def records(gateway: FakeGateways) -> HBaseRecordStore:
    return HBaseRecordStore(gateway, Schema(), SystemClock(), call_s=0.2)


async def value_of(records: HBaseRecordStore) -> bytes | None:
    record = await records.get(b"k")
    return None if record is None else record.value


@pytest.mark.parametrize("ending", [lost_answer, lie, not_done])
async def test_what_can_be_resolved_is_done_once(
    gateway: FakeGateways, records: HBaseRecordStore, ending: Callable[..., Any]
) -> None:
    first = await records.put_if(b"k", None, b"one")
    gateway.endings = [ending]
    second = await records.put_if(b"k", first, b"two")
    record = await records.get(b"k")
    assert record is not None
    assert (record.value, record.version) == (b"two", second)


async def test_another_change_in_its_place_is_a_refusal(
    gateway: FakeGateways, records: HBaseRecordStore
) -> None:
    first = await records.put_if(b"k", None, b"one")

    def overtaken(apply: Callable[[], Any]) -> Any:
        other(gateway, 2)
        return apply()

    gateway.endings = [overtaken]
    assert await records.put_if(b"k", first, b"two") is None
    assert await value_of(records) == b"other"


async def test_a_change_after_mine_leaves_it_unknown(
    gateway: FakeGateways, records: HBaseRecordStore
) -> None:
    first = await records.put_if(b"k", None, b"one")

    def overwritten(apply: Callable[[], Any]) -> Any:
        apply()
        other(gateway, 3)
        return False

    gateway.endings = [overwritten]
    with pytest.raises(OutcomeUnknown):
        await records.put_if(b"k", first, b"two")


async def test_what_never_succeeds_is_unknown(
    gateway: FakeGateways, records: HBaseRecordStore
) -> None:
    gateway.endings = [not_done] * 1000
    with pytest.raises(OutcomeUnknown):
        await records.put_if(b"k", None, b"one")


async def test_a_damaged_record_is_not_served(
    gateway: FakeGateways, records: HBaseRecordStore
) -> None:
    await records.put_if(b"k", None, b"one")
    [row] = gateway.client.table.scan(b"", b"\xff", 9, reverse=False)
    value = row.columns[CONTROL_COLUMN].value
    damaged = value[:-1] + bytes([value[-1] ^ 1])
    gateway.client.table.put(RowCells(b"k", {CONTROL_COLUMN: Cell(1 << 40, damaged)}))
    with pytest.raises(StorageCorrupt):
        await records.get(b"k")


def other(gateway: FakeGateways, changes: int) -> None:
    """Put another's record there, the ``changes``-th change."""
    raw = _encode(changes, b"others!!", b"other")
    gateway.client.table.put(RowCells(b"k", {CONTROL_COLUMN: Cell(1 << 40, raw)}))
