from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest

from broker.errors import BrokerError, Fenced, NoLeader, OutcomeUnknown, StorageFull, Unavailable
from broker.leading.claims import BACK_OFF_MAX_S, claim
from broker.model import ROW_ID_MIN, TopicId
from broker.storage.control import Deleted, StaleGeneration
from broker.storage.keys import LogId
from broker.testing.clock import VirtualClock, VirtualLoop, simulate

LOG = LogId(TopicId("ns", "t"), 1)


class Store:
    """Answers claims by a plan, and notes when they came."""

    def __init__(self, clock: VirtualClock, plan: list[Exception | str]) -> None:
        self._clock = clock
        self._plan = plan
        self.at: list[float] = []

    async def claim(self, log: LogId, owner: str, *, keep_after: bytes) -> Any:
        assert (log, owner, keep_after) == (LOG, "me", ROW_ID_MIN)
        self.at.append(self._clock.monotonic())
        answer = self._plan.pop(0) if len(self._plan) > 1 else self._plan[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def claims(plan: list[Exception | str], deadline_s: float = 10) -> tuple[Any, list[float]]:
    async def main(loop: VirtualLoop) -> tuple[Any, list[float]]:
        clock = VirtualClock(loop)
        store: Any = Store(clock, plan)
        made = claim(
            store,
            LOG,
            owner="me",
            clock=clock,
            keep_after=ROW_ID_MIN,
            deadline=deadline_s,
            jitter=random.Random(1),
        )
        (result,) = await asyncio.gather(made, return_exceptions=True)
        return result, store.at

    return simulate(main)


def test_the_first_success_is_returned_at_once() -> None:
    assert claims(["hold"]) == ("hold", [0.0])


@pytest.mark.parametrize("error", [Fenced("x"), OutcomeUnknown("x"), Unavailable("x")])
def test_what_may_pass_is_tried_again_with_doubling_pauses(error: BrokerError) -> None:
    result, at = claims([error] * 9 + ["hold"])
    assert result == "hold"
    pauses = [later - earlier for earlier, later in pairwise(at)]
    for number, pause in enumerate(pauses):
        whole = min(0.02 * 2**number, BACK_OFF_MAX_S)
        assert whole / 2 <= pause <= whole


def test_it_ends_at_the_deadline_without_having_done_anything() -> None:
    result, at = claims([Unavailable("down")], deadline_s=5)
    assert isinstance(result, NoLeader)
    assert (result.outcome, result.retriable) == ("refused", True)
    assert at[-1] <= 5


@pytest.mark.parametrize("error", [Deleted(), StaleGeneration("newer")])
def test_what_does_not_pass_is_told(error: Exception) -> None:
    result, at = claims([error])
    assert result is error
    assert at == [0.0]


@pytest.mark.parametrize("outcome", ["unknown", "refused"])
def test_a_full_disk_leaves_nothing_of_the_request(outcome: Any) -> None:
    result, _ = claims([StorageFull("full", outcome=outcome)])
    assert isinstance(result, StorageFull)
    assert (result.outcome, result.retriable) == ("refused", True)
