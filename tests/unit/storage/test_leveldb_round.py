import pytest

from broker.errors import Fenced
from broker.model import ROW_ID_MIN, TopicId, row_id
from broker.storage.control import Control, EpochRange, committed
from broker.storage.controlvalue import decode, encode
from broker.storage.keys import LogId
from broker.storage.leveldb_holds import HeldLog, Holds
from broker.storage.leveldb_round import Round, version_bytes
from broker.storage.rowvalue import decode_checked, encode_checked

LOG = LogId(TopicId("default", "notes"), 1)


class FakeBatch:
    def __init__(self) -> None:
        self.puts: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.puts.append((key, value))

    def delete(self, key: bytes) -> None:
        self.puts.append((key, b""))

    def approximate_size(self) -> int:
        return 12 + sum(len(key) + len(value) for key, value in self.puts)

    def write(self) -> None:
        raise AssertionError("a round does not write")


class FakeDatabase:
    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = values

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def batch(self, *, synced: bool) -> FakeBatch:
        return FakeBatch()

    def reopen(self) -> None:
        raise AssertionError("a round does not open anything")


def control(epoch: int) -> Control:
    return Control(epoch, "a", 1, ranges=(EpochRange(1, epoch, ROW_ID_MIN),))


def held(epoch: int) -> HeldLog:
    return HeldLog(LOG, control(epoch), control(epoch), None)


def round_on(holds: Holds, values: dict[bytes, bytes] | None = None) -> tuple[Round, FakeBatch]:
    made = Round(FakeDatabase(values or {}), holds, synced=True)
    batch = made.batch
    assert isinstance(batch, FakeBatch)
    return made, batch


def test_a_control_row_is_written_once_as_the_last_change_leaves_it() -> None:
    holds, hold = Holds(), held(1)
    holds.take(hold)
    round_, batch = round_on(holds)
    for milliseconds in (1, 2, 3):
        current = round_.of(hold)
        round_.change(hold, committed(current, row_id(milliseconds, 0), round_.token))
    assert hold.control.pointer == ROW_ID_MIN  # Not before it is written.
    assert round_.close()
    [(key, value)] = batch.puts
    assert key == hold.key
    assert decode(value).pointer == row_id(3, 0)
    assert decode(value).token == round_.token
    round_.confirm()
    assert hold.control == hold.stored == decode(value)


def test_a_superseded_hold_is_told_what_it_did_itself() -> None:
    holds, first, second = Holds(), held(1), held(2)
    holds.take(first)
    round_, _ = round_on(holds)
    mine = committed(round_.of(first), row_id(1, 0), round_.token)
    round_.change(first, mine)
    holds.take(second)
    round_.change(second, second.control)
    with pytest.raises(Fenced):
        round_.of(first)
    round_.confirm()
    assert (first.control, first.epoch) == (mine, 1)
    assert second.epoch == 2


def test_what_nobody_holds_is_read_as_the_round_leaves_it() -> None:
    holds, stored = Holds(), control(3)
    key = held(1).key
    round_, _ = round_on(holds, {key: encode(stored)})
    assert round_.stored(key) == stored
    assert round_.stored(b"other") is None
    round_.change_unheld(key, control(4))
    assert round_.stored(key) == control(4)


def test_records_are_seen_as_the_round_leaves_them() -> None:
    round_, batch = round_on(Holds(), {b"rk": encode_checked(7, b"old")})
    assert round_.record_version(b"rk") == version_bytes(7)
    assert round_.record_version(b"other") is None
    assert round_.put_record(b"rk", 8, b"new") == version_bytes(8)
    assert round_.record_version(b"rk") == version_bytes(8)
    assert [decode_checked(value) for _, value in batch.puts] == [(8, b"new")]


def test_a_round_without_changes_has_nothing_to_write() -> None:
    round_, _ = round_on(Holds())
    assert not round_.close()
