"""The clean-up and pruning in random runs: no consumer sees a message of a failed transaction."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable

import pytest

from broker.errors import TopicExists, TopicNotFound, TransactionTooOld
from broker.model import TopicId
from broker.testing.mutants import in_force
from tests.kit.bench import TOPIC, Bench
from tests.unit.topics.cleanup_world import LIFE_S, OTHER, SETTLED_MS, TIMEOUT_MS, World


class Story:
    """Random steps on two topics, and the check after each step."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.open: list[int] = []
        self.failed: set[int] = set()

    async def step(self) -> None:
        await self.chance.choice(
            [
                self._begin,
                self._begin,
                *[self._publish] * 4,
                *[self._fail] * 2,
                self._commit,
                *[self._sweep] * 4,
                *[self._wait] * 3,
                *[self._prune] * 3,
                self._restart,
                self._delete,
                self._create,
            ]
        )(self.chance.choice([TOPIC, TOPIC, OTHER]))
        model = self.world.model
        model.expire(self.world.now_ms)
        for pointer in [each for each in self.open if each not in model.in_progress]:
            self.open.remove(pointer)
            self.failed.add(pointer)

    async def _begin(self, _: TopicId) -> None:
        self.open.append(self.world.begin(self.chance.choice([1, 100, 5000]) * TIMEOUT_MS))

    async def _publish(self, topic: TopicId) -> None:
        if pointers := [*self.open, *sorted(self.failed)[-3:]]:
            await self._try_to(self.world.publish(self.chance.choice(pointers), topic))

    async def _fail(self, _: TopicId) -> None:
        if self.open:
            self.world.model.invalidate(self.world.now_ms, self._end(self.failed))

    async def _commit(self, _: TopicId) -> None:
        if self.open:
            self.world.model.commit(self.world.now_ms, self._end(set()))

    async def _sweep(self, _: TopicId) -> None:
        await self.world.sweeper.sweep()

    async def _prune(self, _: TopicId) -> None:
        await self.world.pruning.prune()

    async def _wait(self, _: TopicId) -> None:
        await self.world.bench.pass_ms(self.chance.choice([1000, 100_000, SETTLED_MS]))
        if self.chance.random() < 0.1:
            self.world.bench.clock.step(self.chance.choice([-SETTLED_MS, 10_000]))

    async def _restart(self, _: TopicId) -> None:
        await self.world.bench.topics.close()
        self.world.restart()

    async def _delete(self, topic: TopicId) -> None:
        await self._try_to(self.world.bench.topics.delete(topic))

    async def _create(self, topic: TopicId) -> None:
        await self._try_to(self.world.bench.create(topic, ttl_s=100 * LIFE_S))

    def _end(self, ended: set[int]) -> int:
        pointer = self.chance.choice(self.open)
        self.open.remove(pointer)
        ended.add(pointer)
        return pointer

    @staticmethod
    async def _try_to(change: Awaitable[object]) -> None:
        with contextlib.suppress(TopicNotFound, TopicExists, TransactionTooOld):
            await change

    async def seen(self) -> set[int]:
        """Return the failed transactions of which a consumer is shown a message."""
        found: set[str] = set()
        for topic in (TOPIC, OTHER):
            with contextlib.suppress(TopicNotFound):
                found |= set(await self.world.shown(topic=topic))
        return self.failed & {int(payload) for payload in found if payload != "None"}


async def failed_seen(bench: Bench, seed: int, steps: int) -> set[int]:
    story = Story(World(bench), seed)
    await story.world.bench.create(ttl_s=100 * LIFE_S)
    for _ in range(steps):
        await story.step()
        if seen := await story.seen():
            return seen
    return set()


@pytest.mark.parametrize("seed", range(12))
async def test_no_message_of_a_failed_transaction_is_ever_seen(bench: Bench, seed: int) -> None:
    assert await failed_seen(bench, seed, 60) == set()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 400))
async def test_no_message_of_a_failed_transaction_is_ever_seen_in_many_runs(
    bench: Bench, seed: int
) -> None:
    assert await failed_seen(bench, seed, 150) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prune-before-sweep"])
async def test_random_runs_find_a_missing_guard(name: str) -> None:
    found = False
    with in_force(name):
        for seed in range(30):
            bench = Bench()
            found = found or bool(await failed_seen(bench, seed, 60))
            await bench.topics.close()
            if found:
                break
    assert found
