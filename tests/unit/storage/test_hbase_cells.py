import pytest

from broker.model import TopicId, row_id
from broker.storage.cells import Cell, RowCells, Table
from broker.storage.hbase_cells import HBaseCells, salt_of
from broker.storage.hbase_schema import Schema
from broker.storage.keys import (
    IDEMPOTENCY,
    LogId,
    control_key,
    log_prefix,
    prefix_end,
    row_key,
    side_prefix,
)
from tests.unit.storage.fake_hbase import FakeGateways

TOPIC = TopicId("default", "notes")


def test_all_of_a_topic_has_one_salt() -> None:
    logs = [LogId(TOPIC, 1), LogId(TOPIC, 2), LogId(TOPIC, 1, 7), LogId(TOPIC, 1, -1)]
    keys = [
        key
        for log in logs
        for key in (control_key(log), row_key(log, row_id(9, 9)), side_prefix(log, IDEMPOTENCY))
    ]
    assert len({salt_of(key) for key in keys}) == 1
    assert len(salt_of(keys[0])) == 1


def test_topics_spread() -> None:
    salts = {salt_of(control_key(LogId(TopicId("n", f"t{i}"), 1))) for i in range(1000)}
    assert len(salts) > 200


def test_a_salt_never_changes() -> None:
    """Other bytes here would lose every row that was written before."""
    assert salt_of(control_key(LogId(TOPIC, 1))) == b"\x9a"
    assert salt_of(control_key(LogId(TopicId("system", "tx"), 1))) == b"\xf1"


def test_a_key_without_a_topic_has_none() -> None:
    with pytest.raises(ValueError, match="subsection not found"):
        salt_of(b"no topic")


async def test_scans_and_weights_speak_of_keys_without_salt() -> None:
    gateway = FakeGateways()
    cells = HBaseCells(gateway, Schema(prefix="x_"))
    log = LogId(TOPIC, 1)
    keys = [row_key(log, row_id(n, 0)) for n in range(5)]
    await cells.put(Table.MESSAGES, [RowCells(key, {b"p": Cell(2, b"abc")}) for key in keys])
    start, stop = log_prefix(log), prefix_end(log_prefix(log))
    for reverse in (False, True):
        rows, _ = await cells.scan(
            Table.MESSAGES, start, stop, rows_max=9, bytes_max=999, reverse=reverse
        )
        assert [row.key for row in rows] == (keys[::-1] if reverse else keys)
        found = await cells.keys(Table.MESSAGES, start, stop, rows_max=2, reverse=reverse)
        assert found == [row.key for row in rows[:2]]
    assert await cells.weigh(Table.MESSAGES, start, stop) == (5, sum(len(k) + 3 for k in keys))
    assert gateway.client.table.get(salt_of(keys[0]) + keys[0]) is not None
    await cells.delete(Table.MESSAGES, keys[1:])
    assert await cells.get(Table.MESSAGES, keys[0]) == {b"p": Cell(2, b"abc")}
    assert await cells.get(Table.MESSAGES, keys[1]) is None
