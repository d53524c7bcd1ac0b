import random
import time
from collections.abc import Generator, Sequence

import pytest

from chaos.checkers import Verdict, check
from chaos.history import History
from tests.kit.driver import Done, Refused, TopicContents, UnknownResult
from tests.kit.kills import Extent, run_kills


class OneTurn:
    """An awaitable that lets all other tasks run once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class MemoryDriver:
    """A driver over memory. Each call answers one turn later, unless a kill comes first. Subclasses lose data at a kill."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[tuple[str, str | None, int | None]]] = {}
        self.stored: dict[int, list[tuple[str, str | None]]] = {}
        self.keys: dict[str, Done] = {}
        self.deleted: set[tuple[str, int]] = set()
        self.next_id = 1
        self.life = 0
        self.alive = False

    async def start(self) -> None:
        self.alive = True
        self.life += 1

    async def kill(self) -> None:
        self.alive = False

    async def _answer(self) -> None:
        await OneTurn()
        if not self.alive:
            raise UnknownResult("killed")

    async def _live(self, topic: str, generation: int) -> None:
        await self._answer()
        if (topic, generation) in self.deleted:
            raise Refused("deleted")

    def _ids(self, number: int) -> list[str]:
        self.next_id += number
        return [f"{self.next_id - number + index:020x}" for index in range(number)]

    async def create(self, topic: str) -> int:
        await self._answer()
        generation = 1 + sum(name == topic for name, _ in self.logs)
        self.logs[topic, generation] = []
        await self._answer()
        return generation

    async def delete(self, topic: str, generation: int) -> None:
        await self._live(topic, generation)
        self.deleted.add((topic, generation))
        await self._answer()

    async def publish(
        self,
        topic: str,
        generation: int,
        payloads: Sequence[str],
        *,
        pointer: int | None = None,
        key: str | None = None,
    ) -> Done:
        await self._live(topic, generation)
        if key in self.keys:
            return self.keys[key]._replace(replayed=True)
        ids = self._ids(len(payloads))
        rows = [(row, payload, pointer) for row, payload in zip(ids, payloads, strict=True)]
        self.logs[topic, generation] += rows
        done = Done(ids[0], ids[-1], self.life)
        if key is not None:
            self.keys[key] = done
        await self._answer()
        return done

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> None:
        await self._live(topic, generation)
        log = self.logs[topic, generation]
        for place, row in enumerate(log):
            if row[2] == pointer:
                log[place] = (row[0], row[1], -pointer)
        await self._answer()

    async def store(
        self, topic: str, generation: int, payloads: Sequence[str], number: int
    ) -> Done:
        await self._live(topic, generation)
        ids = self._ids(len(payloads))
        self.stored[number] = list(zip(ids, payloads, strict=True))
        await self._answer()
        return Done(ids[0], ids[-1])

    async def reference(self, topic: str, generation: int, number: int) -> Done:
        await self._live(topic, generation)
        [row] = self._ids(1)
        self.logs[topic, generation].append((row, None, number))
        await self._answer()
        return Done(row, row)

    async def read(self, topic: str, generation: int) -> TopicContents:
        rows = self.logs[topic, generation]
        return TopicContents(list(rows), "0" * 20, rows[-1][0] if rows else "0" * 20)

    async def payloads(
        self, topic: str, generation: int, number: int
    ) -> list[tuple[str, str | None]]:
        return self.stored.get(number, [])


async def verdict_on(driver: MemoryDriver) -> Verdict:
    history = History(time.monotonic_ns)
    counts = await run_kills(driver, history, random.Random(7), Extent(20, 2000))
    assert counts.kills >= 20
    assert counts.acknowledged >= 2000
    assert counts.unknown > 0
    return check(history.calls())


@pytest.mark.slow
async def test_a_system_that_loses_no_data_is_valid() -> None:
    assert (await verdict_on(MemoryDriver())).is_valid


class Forgetful(MemoryDriver):
    async def kill(self) -> None:
        await super().kill()
        self.logs["t0", 1] = self.logs["t0", 1][:-3]


class Careless(MemoryDriver):
    async def kill(self) -> None:
        await super().kill()
        self.keys.clear()


class Undoing(MemoryDriver):
    async def kill(self) -> None:
        await super().kill()
        rows = self.logs["t1", 1]
        self.logs["t1", 1] = [
            (row, payload, pointer and abs(pointer)) for row, payload, pointer in rows
        ]


class Leaking(MemoryDriver):
    async def kill(self) -> None:
        await super().kill()
        self.stored = {number: rows[:-1] for number, rows in self.stored.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "named"),
    [
        (Forgetful, "lost_"),
        (Careless, "two_answers"),
        (Undoing, "rolled_back"),
        (Leaking, "payloads_lost"),
    ],
)
async def test_data_lost_by_a_kill_is_found(driver: type[MemoryDriver], named: str) -> None:
    verdict = await verdict_on(driver())
    assert any(name.startswith(named) for name in verdict.names)
