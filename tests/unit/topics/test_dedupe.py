from __future__ import annotations

import asyncio
import gc

import pytest

from broker.errors import (
    AlreadyPublished,
    BadRequest,
    Fenced,
    IdempotencyKeyReused,
    NotLeader,
    PayloadsSealed,
)
from broker.long_work import soon
from broker.model import LOG_KEY_MIN, log_key
from broker.testing.mutants import in_force
from broker.topics.dedupe import (
    EXPIRED_AT_ONCE,
    KEY_BYTES,
    AnsweredKeys,
    KeyBudget,
    KeyedOutcome,
    key_hash,
)
from broker.topics.settings import PublishOptions
from tests.kit.bench import TOPIC, Bench, Gate, settle
from tests.kit.serving import eventually

WINDOW_MS = 600_000
K = PublishOptions(key="k")


async def test_the_same_key_gets_the_same_answer_and_stores_no_message(bench: Bench) -> None:
    await bench.create()
    first = await bench.publish(b"a", b"b", options=K)
    again = await bench.publish(b"a", b"b", options=K)
    assert again == first._replace(replayed=True)
    assert await bench.payloads() == [b"a", b"b"]


@pytest.mark.parametrize("payloads", [[b"b"], [b"a", b""], [b"", b"a"]])
async def test_another_body_under_the_key_is_refused(bench: Bench, payloads: list[bytes]) -> None:
    await bench.create()
    await bench.publish(b"a", options=K)
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(*payloads, options=K)
    with pytest.raises(AlreadyPublished):
        await bench.publish(b"a", pointer=3, options=K)
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(b"a", options=K._replace(ttl_s=3))
    assert await bench.payloads() == [b"a"]


async def test_a_request_whose_key_is_in_flight_joins_it(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()
    bench.table.on("append", gate.before)
    one = asyncio.ensure_future(bench.publish(b"a", options=K))
    await gate.reached.wait()
    two = asyncio.ensure_future(bench.publish(b"a", options=K))
    await settle()
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(b"other", options=K)
    gate.open()
    assert (await two) == (await one)._replace(replayed=True)
    assert await bench.payloads() == [b"first", b"a"]


async def test_a_keyed_publish_completes_although_its_first_caller_leaves(bench: Bench) -> None:
    await bench.create()
    gate = Gate()
    bench.table.on("append", gate.before)
    one = asyncio.ensure_future(bench.publish(b"a", options=K))
    await gate.reached.wait()
    two = asyncio.ensure_future(bench.publish(b"a", options=K))
    await settle()
    one.cancel()
    await settle()
    gate.open()
    assert (await two).replayed
    assert await bench.payloads() == [b"a"]


async def test_a_fresh_key_is_not_looked_up_in_storage_but_one_that_comes_again_is(
    bench: Bench,
) -> None:
    await bench.create()
    first = await bench.publish(b"a", options=K._replace(is_fresh=True))
    assert "scan" not in bench.table.calls
    bench.restart()
    again = await bench.publish(b"a", options=K)
    assert "scan" in bench.table.calls
    assert again == first._replace(replayed=True)
    assert await bench.payloads() == [b"a"]


async def test_a_fresh_key_that_is_known_in_memory_is_not_written_again(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a", options=K)
    assert (await bench.publish(b"a", options=K._replace(is_fresh=True))).replayed
    assert await bench.payloads() == [b"a"]


@pytest.mark.parametrize("off", [-1, 1])
async def test_a_request_for_another_epoch_is_refused(bench: Bench, off: int) -> None:
    await bench.create()
    await bench.publish(b"a")
    epoch = bench.leader().epoch
    with pytest.raises(NotLeader) as refused:
        await bench.publish(b"b", options=PublishOptions(epoch=epoch + off))
    assert refused.value.epoch == epoch
    await bench.publish(b"c", options=PublishOptions(epoch=epoch))
    assert await bench.payloads() == [b"a", b"c"]


async def test_a_key_holds_after_a_restart_and_nine_minutes_later(bench: Bench) -> None:
    await bench.create()
    first = await bench.publish(b"a", options=K)
    await bench.pass_ms(9 * 60_000)
    assert (await bench.publish(b"a", options=K)).replayed
    bench.restart()
    assert await bench.publish(b"a", options=K) == first._replace(replayed=True)
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(b"b", options=K)
    assert await bench.payloads() == [b"a"]


async def test_after_its_window_a_key_is_new(bench: Bench) -> None:
    await bench.create(ttl_s=100_000)
    await bench.publish(b"a", options=K)
    await bench.pass_ms(WINDOW_MS + 2)  # Its id is 1 ms ahead.
    assert not (await bench.publish(b"a", options=K)).replayed
    assert await bench.payloads() == [b"a", b"a"]


async def test_more_keys_than_memory_holds_are_found_in_storage(bench: Bench) -> None:
    bench.restart(idempotency_keys_max=3)
    await bench.create()
    for number in range(10):
        await bench.publish(b"%d" % number, options=PublishOptions(key=str(number)))
    await bench.pass_ms(9 * 60_000)
    for number in range(10):
        options = PublishOptions(key=str(number))
        assert (await bench.publish(b"%d" % number, options=options)).replayed
    assert len(await bench.poll(None)) == 10


async def test_a_fenced_keyed_request_is_stored_once_by_the_next_leader(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()

    async def fenced(real: object, *arguments: object) -> None:
        gate.reached.set()
        await gate.opened.wait()
        raise Fenced("over")

    bench.table.on("append", fenced)
    one = asyncio.ensure_future(bench.publish(b"a", options=K))
    await gate.reached.wait()
    two = asyncio.ensure_future(bench.publish(b"a", options=K))
    await settle()
    gate.open()
    done = await asyncio.gather(one, two)
    assert {published.first for published in done} == {done[0].first}
    assert await bench.payloads() == [b"first", b"a"]


async def test_a_key_belongs_to_its_topic_or_its_payload_log(bench: Bench) -> None:
    other = TOPIC._replace(topic="other")
    await bench.create()
    await bench.create(other)
    await bench.publish(b"a", options=K)
    assert not (await bench.publish(b"b", topic=other, options=K)).replayed
    assert not (await bench.stored(5, b"c", options=K)).replayed
    assert not (await bench.stored(6, b"d", options=K)).replayed
    assert (await bench.stored(5, b"c", options=K)).replayed


async def test_a_keyed_store_is_replayed_also_after_its_publish(bench: Bench) -> None:
    await bench.create()
    first = await bench.stored(5, b"p", options=K)
    assert await bench.stored(5, b"p", options=K) == first._replace(replayed=True)
    bench.restart()
    assert await bench.stored(5, b"p", options=K) == first._replace(replayed=True)
    await bench.publish(pointer=5)
    assert await bench.stored(5, b"p", options=K) == first._replace(replayed=True)
    with pytest.raises(IdempotencyKeyReused):
        await bench.stored(5, b"q", options=K)
    with pytest.raises(PayloadsSealed):
        await bench.stored(5, b"p", options=PublishOptions(key="another"))
    bench.restart()
    assert await bench.stored(5, b"p", options=K) == first._replace(replayed=True)
    assert await bench.payloads() == [b"p"]


async def test_a_key_of_a_reference_counts_as_any_other_key(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"p")
    first = await bench.publish(pointer=5, options=K)
    assert (await bench.publish(pointer=5, options=K)).replayed
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(b"m", options=K)
    bench.restart()
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(b"m", options=K)
    assert (await bench.publish(pointer=5, options=K)).first == first.first


@pytest.mark.slow
async def test_a_sweep_frees_the_keys_of_a_topic_that_is_idle(bench: Bench) -> None:
    def kept() -> list[KeyedOutcome]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is KeyedOutcome]

    before = kept()  # This list keeps what other tests left.
    await bench.create()
    for number in range(20):
        await bench.publish(b"m", options=PublishOptions(key=f"k{number}"))
    await bench.sweeper.sweep()
    assert len(kept()) == len(before) + 20, "their window has not passed"
    await bench.pass_ms(bench.around.settings.idempotency_window_ms + 2)
    await bench.sweeper.sweep()
    assert len(kept()) == len(before)


async def test_a_refused_key_may_be_used_again(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    with pytest.raises(BadRequest, match="ttl"):
        await bench.publish(b"a", options=PublishOptions(key="k", ttl_s=10**6))
    assert not (await bench.publish(b"b", options=K)).replayed


async def test_without_its_guard_a_repeated_key_publishes_twice(bench: Bench) -> None:
    await bench.create()
    with in_force("dedupe"):
        for _ in range(2):
            await bench.publish(b"a", options=K)
    assert await bench.payloads() == [b"a", b"a"]


class Counted(KeyedOutcome):
    """An answer that notes when it is freed."""

    freed = 0

    def __del__(self) -> None:
        Counted.freed += 1


OLD, LATE = log_key(1, 0), log_key(2, 0)


def remembered(budget: KeyBudget, keys: int) -> AnsweredKeys:
    memory = AnsweredKeys(pointer=LOG_KEY_MIN, keys_max=10**6, budget=budget)
    for number in range(keys):
        memory.put(key_hash(str(number)), Counted(OLD, OLD, bytes(32)), OLD)
    return memory


def test_keys_of_a_passed_window_are_forgotten_in_bounded_steps() -> None:
    budget = KeyBudget(1 << 30)
    memory = remembered(budget, 10_000)
    Counted.freed = 0
    late, answer = LATE, KeyedOutcome(LATE, LATE, bytes(32))
    assert memory.get(key_hash("7"), late) is None, "its window has passed"
    assert Counted.freed == 0
    memory.put(key_hash("7"), answer, late)
    assert 0 < Counted.freed <= EXPIRED_AT_ONCE + 1
    assert memory.get(key_hash("7"), late) == answer
    for _ in memory.expire(late):
        pass
    assert budget.bytes == KEY_BYTES


async def test_the_keys_of_a_leader_that_ends_are_dropped_in_bounded_steps() -> None:
    budget = KeyBudget(1 << 30)
    memory = remembered(budget, 10_000)
    Counted.freed = 0
    soon(memory.close())
    assert Counted.freed <= 256
    assert memory.get(key_hash("7"), OLD) is None
    await eventually(lambda: Counted.freed == 10_000, lambda: Counted.freed)
    assert budget.bytes == 0


def test_all_topics_of_a_node_share_the_memory_of_keys() -> None:
    budget = KeyBudget(300 * KEY_BYTES)
    idle, busy = remembered(budget, 200), remembered(budget, 200)
    assert budget.bytes == 300 * KEY_BYTES
    known = [idle.get(key_hash(str(number)), OLD) is not None for number in range(200)]
    assert known == [False] * 100 + [True] * 100, "the idle topic forgets its oldest keys"
    assert all(busy.get(key_hash(str(number)), OLD) is not None for number in range(200))
    assert idle.must_look_up(OLD), "storage has the keys that are forgotten"


async def test_without_its_guard_a_key_is_done_in_another_transaction(bench: Bench) -> None:
    await bench.create()
    first = await bench.publish(b"a", pointer=3, options=K)
    with in_force("own-effect"):
        again = await bench.publish(b"a", pointer=4, options=K)
    assert again == first._replace(pointer=4, replayed=True)
