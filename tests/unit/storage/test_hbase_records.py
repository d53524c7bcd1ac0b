"""How a record's compare-and-set is resolved when its answer is none."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.clock import SystemClock
from broker.errors import OutcomeUnknown, StorageCorrupt
from broker.storage.cells import CONTROL_COLUMN, Cell, RowCells
from broker.storage.hbase_records import HBaseRecordStore, _encode
from tests.unit.storage.fake_hbase import FakeGateway, lie, lost_answer, not_done


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def records(gateway: FakeGateway) -> HBaseRecordStore:
    return HBaseRecordStore(gateway, "x_", SystemClock(), call_s=0.2)


async def value_of(records: HBaseRecordStore) -> bytes | None:
    record = await records.get(b"k")
    return None if record is None else record.value


@pytest.mark.parametrize("ending", [lost_answer, lie, not_done])
async def test_what_can_be_resolved_is_done_once(
    gateway: FakeGateway, records: HBaseRecordStore, ending: Callable[..., Any]
) -> None:
    first = await records.put_if(b"k", None, b"one")
    gateway.endings = [ending]
    second = await records.put_if(b"k", first, b"two")
    record = await records.get(b"k")
    assert record is not None
    assert (record.value, record.version) == (b"two", second)


async def test_another_change_in_its_place_is_a_refusal(
    gateway: FakeGateway, records: HBaseRecordStore
) -> None:
    first = await records.put_if(b"k", None, b"one")

    def overtaken(apply: Callable[[], Any]) -> Any:
        other(gateway, 2)
        return apply()

    gateway.endings = [overtaken]
    assert await records.put_if(b"k", first, b"two") is None
    assert await value_of(records) == b"other"


async def test_a_change_after_mine_leaves_it_unknown(
    gateway: FakeGateway, records: HBaseRecordStore
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
    gateway: FakeGateway, records: HBaseRecordStore
) -> None:
    gateway.endings = [not_done] * 1000
    with pytest.raises(OutcomeUnknown):
        await records.put_if(b"k", None, b"one")


async def test_a_damaged_record_is_not_served(
    gateway: FakeGateway, records: HBaseRecordStore
) -> None:
    await records.put_if(b"k", None, b"one")
    [row] = gateway.client.table.scan(b"", b"\xff", 9, reverse=False)
    damaged = row.columns[CONTROL_COLUMN].value[:-1] + b"?"
    gateway.client.table.put(RowCells(b"k", {CONTROL_COLUMN: Cell(1 << 40, damaged)}))
    with pytest.raises(StorageCorrupt):
        await records.get(b"k")


def other(gateway: FakeGateway, changes: int) -> None:
    """Put another's record there, the ``changes``-th change."""
    raw = _encode(changes, b"others!!", b"other")
    gateway.client.table.put(RowCells(b"k", {CONTROL_COLUMN: Cell(1 << 40, raw)}))
