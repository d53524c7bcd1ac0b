import random

import pytest

from broker.clock import SystemClock
from broker.errors import Fenced
from broker.model import TopicId
from broker.storage import holds
from broker.storage.cells import Table
from broker.storage.chain import Chain, Tokens
from broker.storage.control import claimed
from broker.storage.holds import TableHold
from broker.storage.keys import LogId
from broker.storage.memory_cells import MemoryCells
from broker.storage.retrying import Retrying

TOPIC = LogId(TopicId("default", "notes"), 1)


def hold(log: LogId, topic_hold: TableHold | None = None) -> TableHold:
    tokens = Tokens(b"n" * 8)
    retrying = Retrying(SystemClock(), 1.0, random.Random(1))
    chain = Chain(MemoryCells(), (Table.MESSAGES, b"key"), tokens, retrying, lambda *_: None)
    if topic_hold is None:
        chain.confirmed = claimed(None, owner="a", generation=1, token=tokens.fresh())
    return TableHold(log, chain, tokens, topic_hold)


def payloads_of(topic: TableHold, number: int) -> TableHold:
    return hold(TOPIC._replace(number=number), topic)


async def test_a_payload_logs_hold_stands_and_falls_with_its_topics():
    topic = hold(TOPIC)
    payloads = payloads_of(topic, 7)
    assert payloads.epoch == topic.epoch
    payloads.check()
    payloads.end()
    assert topic.done
    with pytest.raises(Fenced):
        topic.check()
    with pytest.raises(Fenced):
        payloads_of(topic, 8).check()


async def test_tokens_tell_whose_they_are():
    mine, other = Tokens(b"m" * 8), Tokens(b"o" * 8)
    first, second = mine.fresh(), mine.fresh()
    assert first < second
    assert mine.are_mine(first)
    assert not other.are_mine(first)


async def test_idle_payload_holds_are_forgotten_the_oldest_first(monkeypatch):
    monkeypatch.setattr(holds, "PAYLOAD_HOLDS_MAX", 2)
    topic = hold(TOPIC)
    kept = [topic.remember(payloads_of(topic, number)) for number in range(2)]
    assert topic.payloads(0) is kept[0]
    topic.remember(payloads_of(topic, 2))
    assert topic.payloads(1) is None
    assert topic.payloads(0) is kept[0]
    async with kept[0].rows_lock:
        topic.remember(payloads_of(topic, 3))
        assert topic.payloads(0) is kept[0]
    first = payloads_of(topic, 9)
    assert topic.remember(first) is first
    assert topic.remember(payloads_of(topic, 9)) is first
