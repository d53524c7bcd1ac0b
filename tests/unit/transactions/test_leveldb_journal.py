"""The journal over LevelDB: its file ends at any byte, as after a power cut, and no answered edit is missing."""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.clock import SystemClock
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.directory_repair import verify_directory
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState

SETTINGS = TransactionSettings(snapshot_edits=15)
STEPS = 60
LONGER_THAN_THE_TEST_S = 600
"""A transaction that times out while the test runs would change the state that it compares."""


class Answered(NamedTuple):
    """The moment of an answer: the size of LevelDB's log, the number of the last edit, and the last pointer given."""

    size: int
    number: int
    pointer: int


class Store:
    """A node's transactions over one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __aenter__(self) -> Transactions:
        self.table = await open_table(self.directory, Options())
        logs = Logs(self.table, SystemClock())
        around = Surroundings(logs, SystemClock(), TopicSettings(), owner="node")
        self.topics = Topics(around, Records(logs.resolver))
        self.service = Transactions(self.topics.leaders, SETTINGS)
        return self.service

    async def __aexit__(self, *_: object) -> None:
        await self.service.close()
        await self.topics.close()
        await self.table.close()

    @property
    def log(self) -> Path:
        """LevelDB's log."""
        (found,) = (self.directory / "db").glob("*.log")
        return found


def parts_of(state: ServiceState | None) -> dict[str, Any]:
    """Return a copy of all parts of a state."""
    assert state is not None
    parts = {**vars(state), "in_progress": {}, "gone": None}
    for each in state.in_progress.values():
        parts["in_progress"][each.id] = {name: getattr(each, name) for name in each.__slots__}
    return copy.deepcopy(parts)


async def work(
    store: Store, service: Transactions, chance: random.Random
) -> tuple[list[Answered], dict[int, Any]]:
    """Make random calls. Return the moment of each answer, and the state after each edit."""
    answered: list[Answered] = []
    states: dict[int, Any] = {}
    begun: list[int] = []
    pointer = 0
    await service.snapshot()
    for _ in range(STEPS):
        draw = chance.random()
        if draw < 0.4 or not begun:
            started = await service.start(client="a client", timeout_s=LONGER_THAN_THE_TEST_S)
            pointer = started.transaction_id
            begun.append(pointer)
        elif draw < 0.5:
            pointer = (await service.checkpoint(chance.choice(begun))).write_pointer
        elif draw < 0.7:
            await service.can_commit(chance.choice(begun), [chance.randbytes(8)])
        else:
            end = chance.choice((service.commit, service.abort, service.invalidate))
            await end(begun.pop(chance.randrange(len(begun))))
        assert service.state is not None
        number = service.state.number
        states[number] = parts_of(service.state)
        answered.append(Answered(store.log.stat().st_size, number, pointer))
    return answered, states


async def check_cut(
    base: Path, there: Path, size: int, answered: list[Answered], states: dict[int, Any]
) -> None:
    """Open a copy whose log ends after so many bytes."""
    shutil.copytree(base, there)
    store = Store(there)
    with store.log.open("r+b") as log:
        log.truncate(size)
    known = [each for each in answered if each.size <= size]
    async with store as service:
        await service.snapshot()
        number = service.state.number if service.state is not None else 0
        assert number >= max((each.number for each in known), default=0), f"cut at {size}"
        if number in states:
            assert parts_of(service.state) == states[number], f"cut at {size}"
        given = (await service.start()).transaction_id
        assert given > max((each.pointer for each in known), default=0), f"cut at {size}"
    shutil.rmtree(there)


@pytest.mark.parametrize(
    "cuts", [40, pytest.param(2000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
async def test_no_answered_edit_is_missing_wherever_the_file_ends(
    tmp_path: Path, drawn_seed: int, cuts: int
) -> None:
    chance = random.Random(drawn_seed)
    store = Store(tmp_path / "store")
    async with store as service:
        answered, states = await work(store, service, chance)
        shutil.copytree(store.directory, tmp_path / "base")
    assert (await verify_directory(store.directory)).problems == []
    end = answered[-1].size
    sizes = {end, *(chance.randrange(answered[0].size, end) for _ in range(cuts))}
    for size in sorted(sizes):
        await check_cut(tmp_path / "base", tmp_path / "cut", size, answered, states)
    assert len(states) > STEPS // 2
