import gc

import pytest

from broker.errors import Fenced
from broker.model import ROW_ID_MIN, TopicId, row_id
from broker.storage.control import Control, EpochRange
from broker.storage.keys import LogId
from broker.storage.leveldb_holds import HeldLog, Holds, database_control_key, database_prefix

LOG = LogId(TopicId("default", "notes"), 1)
PAYLOADS = LOG._replace(number=7)


def control(epoch: int) -> Control:
    return Control(epoch, "a", 1, ranges=(EpochRange(1, epoch, ROW_ID_MIN),))


def held(epoch: int, topic_hold: HeldLog | None = None) -> HeldLog:
    log = LOG if topic_hold is None else PAYLOADS
    return HeldLog(log, control(epoch), None, topic_hold)


def test_a_table_byte_tells_messages_from_payloads() -> None:
    assert database_prefix(LOG).startswith(b"mdefault:notes:")
    assert database_prefix(PAYLOADS).startswith(b"pdefault:notes:")
    assert database_control_key(LOG)[:1] == b"m"
    assert database_control_key(PAYLOADS)[:1] == b"p"


def test_a_hold_is_good_until_another_takes_its_place() -> None:
    holds = Holds()
    first, second = held(1), held(2)
    holds.take(first)
    holds.check(first)
    holds.take(second)
    assert first.done
    holds.check(second)
    with pytest.raises(Fenced, match="epoch 1"):
        holds.check(first)


def test_a_hold_that_was_never_taken_is_refused() -> None:
    stray = held(1)
    with pytest.raises(Fenced):
        Holds().check(stray)
    assert stray.done


def test_a_payload_hold_falls_with_its_topics() -> None:
    holds = Holds()
    topic = held(1)
    payloads = held(1, topic)
    holds.take(topic)
    holds.take(payloads)
    holds.check(payloads)
    holds.take(held(2))
    with pytest.raises(Fenced):
        holds.check(payloads)


def test_a_payload_hold_lives_as_long_as_somebody_has_it() -> None:
    holds = Holds()
    topic = held(1)
    payloads = held(1, topic)
    holds.take(topic)
    holds.take(payloads)
    assert holds.current(payloads.key) is payloads
    key = payloads.key
    del payloads
    gc.collect()
    assert holds.current(key) is None


def test_what_is_confirmed_is_known_without_reading() -> None:
    holds = Holds()
    hold = held(1)
    assert holds.last_confirmed(hold.key) == (False, None)
    holds.take(hold)
    assert holds.last_confirmed(hold.key) == (True, None)
    confirmed = control(1)
    hold.confirm(confirmed)
    assert holds.last_confirmed(hold.key) == (True, confirmed)
    holds.let_go(hold.key)
    assert hold.done
    assert holds.last_confirmed(hold.key) == (False, None)


def test_after_an_error_all_holds_are_done_and_readers_keep_what_was_confirmed() -> None:
    holds = Holds()
    topic = held(1)
    topic.confirm(control(1))
    payloads = held(1, topic)
    holds.take(topic)
    holds.take(payloads)
    topic.control = Control(1, "a", 1, pointer=row_id(9, 9))  # Under way, not confirmed.
    holds.end_all()
    assert topic.done
    assert payloads.done
    assert holds.current(topic.key) is None
    assert holds.last_confirmed(topic.key) == (True, topic.stored)
    assert holds.last_confirmed(payloads.key) == (True, None)
    holds.forget_confirmed()
    assert holds.last_confirmed(topic.key) == (False, None)
