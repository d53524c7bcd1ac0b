"""A window passes when it has passed by every clock of the node: jumps make no key, number or message go early."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.model import PublishRequest, log_key, log_key_after
from broker.storage.marks import PRODUCER_LIFE_MS
from broker.testing.mutants import in_force
from broker.testing.virtual_time import VirtualClock, VirtualLoop, virtual_loop
from broker.topics.dedupe import AnsweredKeys, KeyedOutcome
from broker.topics.mark_window import MarkWindow
from broker.topics.settings import Producer, PublishOptions
from tests.kit.bench import TOPIC, Bench

WINDOW_MS = 600_000
HOUR_MS = 3_600_000
MARGIN_MS = 60_000
K = PublishOptions(key="k")
STEPS = [HOUR_MS, -HOUR_MS, 400 * 24 * HOUR_MS]


async def sweep_twice(bench: Bench) -> None:
    """Sweep before and after a claim anew, so that all marks are on disk, and judged."""
    await bench.pass_ms(1000)
    await bench.sweeper.sweep()
    await bench.pass_ms(WINDOW_MS // 2)
    await bench.sweeper.sweep()


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("anew", [False, True])
async def test_a_step_of_the_clock_ends_no_window_of_a_key(
    bench: Bench, step_ms: int, anew: bool
) -> None:
    await bench.create(ttl_s=10**9)
    await bench.pass_ms(2 * WINDOW_MS)  # The claim is long ago: it keeps no key.
    first = await bench.publish(b"a", options=K)
    bench.clock.step(step_ms)
    if anew:
        bench.restart()
        await bench.publish(b"b")
    await sweep_twice(bench)
    assert await bench.publish(b"a", options=K) == first._replace(replayed=True)
    bench.restart()
    assert await bench.publish(b"a", options=K) == first._replace(replayed=True)


@pytest.mark.parametrize("step_ms", STEPS)
async def test_a_step_of_the_clock_does_not_forget_a_producer(bench: Bench, step_ms: int) -> None:
    numbered = PublishOptions(producer=Producer("p", 1))
    await bench.create(ttl_s=1000)
    await bench.pass_ms(2 * WINDOW_MS)
    await bench.publish(b"a", options=numbered)
    bench.clock.step(step_ms)
    await sweep_twice(bench)
    assert (await bench.publish(b"a", options=numbered)).replayed
    bench.restart()
    assert (await bench.publish(b"a", options=numbered)).replayed


async def test_a_silent_producer_is_forgotten_by_look_up_and_sweep(bench: Bench) -> None:
    numbered = PublishOptions(producer=Producer("p", 1))
    await bench.create(ttl_s=1000)
    await bench.publish(b"a", options=numbered)
    await bench.pass_ms(PRODUCER_LIFE_MS + 1_000_000)
    assert (await bench.publish(b"a", options=numbered)).replayed
    await bench.pass_ms(10)
    assert not (await bench.publish(b"a", options=numbered)).replayed


@pytest.mark.parametrize("down_ms", [0, 24 * HOUR_MS])
@pytest.mark.parametrize("swept", [False, True])
async def test_a_key_of_before_a_claim_counts_for_one_window_from_the_claim_on(
    bench: Bench, down_ms: int, swept: bool
) -> None:
    """No clock of the new leader has seen for how long the key has been there."""
    bench.restart(sweep_margin_ms=0)
    await bench.create(ttl_s=10**9)
    first = await bench.publish(b"a", options=K)
    bench.clock.step(down_ms)  # As after a downtime: the boot clock of a machine begins anew.
    bench.restart()
    await bench.publish(b"claims")
    await bench.pass_ms(WINDOW_MS - 10)
    if swept:
        await bench.sweeper.sweep()
    assert await bench.publish(b"a", options=K) == first._replace(replayed=True)
    await bench.pass_ms(1000)
    if swept:
        await bench.sweeper.sweep()
    again = await bench.publish(b"a", options=K)
    assert not again.replayed
    bench.restart()
    assert await bench.publish(b"a", options=K) == again._replace(replayed=True)


@pytest.mark.parametrize("step_ms", STEPS)
async def test_a_step_of_the_clock_ends_no_stage(bench: Bench, step_ms: int) -> None:
    await bench.create(ttl_s=10**9)
    stage = await bench.topics.begin_stage(TOPIC)
    await bench.topics.store(TOPIC, PublishRequest(None, (b"a",), (stage,)))
    bench.clock.step(step_ms)
    await sweep_twice(bench)
    await bench.topics.store(TOPIC, PublishRequest(None, (b"b",), (stage,)))
    await bench.topics.publish(TOPIC, PublishRequest(None, (), (stage,)))
    assert await bench.payloads() == [b"a", b"b"]


async def test_a_message_is_not_removed_because_the_clock_jumped(bench: Bench) -> None:
    await bench.create(ttl_s=1000)
    await bench.publish(b"a")
    bench.clock.step(HOUR_MS)
    await sweep_twice(bench)
    assert await bench.payloads() == [], "by the wall clock it has expired"
    bench.clock.step(-HOUR_MS)
    assert await bench.payloads() == [b"a"]
    await bench.pass_ms(1_000_000)
    await sweep_twice(bench)
    bench.clock.step(-1_000_000)
    assert await bench.payloads() == [], "removed"


async def test_keys_of_ids_ahead_of_the_clock_are_forgotten_after_the_next_claim(
    bench: Bench,
) -> None:
    bench.clock.step(10 * 365 * 24 * HOUR_MS)
    await bench.create(ttl_s=10**9)
    await bench.publish(b"a", options=K)
    bench.clock.step(-10 * 365 * 24 * HOUR_MS)
    bench.restart()
    assert (await bench.publish(b"a", options=K)).replayed
    await bench.pass_ms(WINDOW_MS + 10)
    assert not (await bench.publish(b"a", options=K)).replayed


async def test_keys_of_stores_do_not_go_by_the_ids_of_the_topic(bench: Bench) -> None:
    """The ids of the payload logs are not ahead if those of the topic are."""
    bench.clock.step(10 * 365 * 24 * HOUR_MS)
    await bench.create(ttl_s=10**9)
    await bench.publish(b"of 2036")
    bench.clock.step(-10 * 365 * 24 * HOUR_MS)
    bench.restart()
    await bench.publish(b"claims")
    await bench.pass_ms(2 * WINDOW_MS)
    pointer = bench.clock.now_ms() * 1_000_000
    first = await bench.stored(pointer, b"a", options=K)
    await bench.publish(pointer=pointer)
    assert await bench.stored(pointer, b"a", options=K) == first._replace(replayed=True)


class Keys:
    """The keys of one log: in the leader's memory, and in storage."""

    def __init__(self, loop: VirtualLoop, keys_max: int) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.keys_max = keys_max
        self.rows: dict[bytes, KeyedOutcome] = {}
        self.put_at: dict[bytes, float] = {}
        self.pointer = log_key(self.clock.now_ms(), 0)
        self.claim(0)

    def claim(self, _: int) -> None:
        self.window = MarkWindow(self.clock, self.pointer, WINDOW_MS)
        self.memory = AnsweredKeys(pointer=self.pointer, keys_max=self.keys_max)

    def wait(self, milliseconds: int) -> None:
        self.loop.advance(milliseconds / 1000)

    def step(self, by_ms: int) -> None:
        self.clock.step(by_ms)

    def sweep(self, _: int) -> None:
        bound = self.window.passed_before(WINDOW_MS + MARGIN_MS)
        self.rows = {key: row for key, row in self.rows.items() if row.first >= bound}

    def find(self, key: bytes) -> KeyedOutcome | None:
        passed = self.window.passed_before(WINDOW_MS)
        known = self.memory.get(key, passed)
        if known is None and self.memory.must_look_up(passed):
            known = self.rows.get(key)
        return known if known is not None and known.first >= passed else None

    def request(self, number: int) -> None:
        key = b"%d" % number
        if self.find(key) is None:
            self.pointer = max(log_key(self.clock.now_ms(), 0), log_key_after(self.pointer))
            self.rows[key] = KeyedOutcome(self.pointer, self.pointer, bytes(32))
            self.put_at[key] = self.loop.time()
            self.memory.put(key, self.rows[key], self.window.passed_before(WINDOW_MS))

    def lost(self) -> list[bytes]:
        """Return the keys that are within their window by true time, and are not found."""
        young = (key for key, at in self.put_at.items() if (self.loop.time() - at) <= 600)
        return [key for key in young if self.find(key) is None]


async def test_without_its_guard_a_retry_after_a_jump_is_stored_twice(bench: Bench) -> None:
    await bench.create(ttl_s=10**9)
    await bench.publish(b"a", options=K)
    bench.clock.step(HOUR_MS)
    with in_force("mark-window"):
        assert not (await bench.publish(b"a", options=K)).replayed


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just(Keys.wait), st.integers(0, WINDOW_MS)),
        st.tuples(st.just(Keys.step), st.integers(-3 * WINDOW_MS, 3 * WINDOW_MS)),
        st.tuples(st.just(Keys.request), st.integers(0, 5)),
        st.tuples(st.sampled_from([Keys.claim, Keys.sweep]), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS, st.integers(1, 4))
@example(
    [
        (Keys.wait, WINDOW_MS),
        (Keys.wait, 1),
        (Keys.request, 1),
        (Keys.step, 2 * WINDOW_MS),
        (Keys.sweep, 0),
        (Keys.claim, 0),
    ],
    1,
)
def test_a_key_counts_for_at_least_its_window(
    actions: list[tuple[Callable[[Keys, int], None], int]], keys_max: int
) -> None:
    """Each key is found for one window of true time, in memory or in storage, however the wall clock steps."""
    with virtual_loop() as loop:
        keys = Keys(loop, keys_max)
        for act, number in actions:
            act(keys, number)
            assert not keys.lost()
