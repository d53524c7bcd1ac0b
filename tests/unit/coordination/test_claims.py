from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from broker.coordination.claims import BACK_OFF_MAX_S, Claimed, SendTime, claim, written
from broker.coordination.tenure import HERE, TopicPlacement
from broker.errors import (
    BrokerError,
    Fenced,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from broker.model import TopicId
from broker.storage.keys import LogId
from broker.storage.last_page import TailReading
from broker.storage.log import Deleted, StaleGeneration
from broker.testing.virtual_time import VirtualClock, VirtualLoop, simulate

LOG = LogId(TopicId("ns", "t"), 1)
SEEN = TailReading(None, None, None)


class Held(NamedTuple):
    """The parts of a hold that a claim uses."""

    before_server_ms: int | None = None
    claimed_server_ms: int | None = None


HELD: Any = Held()


class Permits:
    """A tenure that records its calls."""

    def __init__(self, *, refuse_from: int = 1 << 30) -> None:
        self.happened: list[str] = []
        self.refuse_from = refuse_from

    def place(self, topic: TopicId) -> TopicPlacement:
        del topic
        return HERE

    async def permit(self, topic: TopicId, deadline: float) -> TailReading:
        assert (topic, deadline) == (LOG.topic, 10)
        self.happened.append("permit")
        if self.happened.count("permit") >= self.refuse_from:
            raise NotLeader("moved")
        return SEEN

    def fenced(self, topic: TopicId) -> None:
        assert topic == LOG.topic
        self.happened.append("fenced")


class Store:
    """Answers claims by a plan, and records their times."""

    def __init__(self, clock: VirtualClock, plan: list[Exception | Held]) -> None:
        self._clock = clock
        self._plan = plan
        self.at: list[float] = []

    async def claim(self, log: LogId, owner: str, seen: TailReading) -> Any:
        assert (log, owner, seen) == (LOG, "me", SEEN)
        self.at.append(self._clock.monotonic())
        answer = self._plan.pop(0) if len(self._plan) > 1 else self._plan[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def claims(plan: list[Exception | Held], permits: Permits | None = None) -> tuple[Any, list[float]]:
    async def main(loop: VirtualLoop) -> tuple[Any, list[float]]:
        clock = VirtualClock(loop)
        store: Any = Store(clock, plan)
        made = claim(
            store,
            LOG,
            owner="me",
            clock=clock,
            deadline=10,
            jitter=random.Random(1),
            tenure=permits or Permits(),
        )
        (result,) = await asyncio.gather(made, return_exceptions=True)
        return result, store.at

    return simulate(main)


def test_the_first_success_is_returned_at_once() -> None:
    assert claims([HELD]) == (Claimed(HELD, None), [0.0])


@pytest.mark.parametrize("error", [Fenced("x"), OutcomeUnknown("x"), Unavailable("x")])
def test_temporary_failures_are_retried_with_doubling_pauses(error: BrokerError) -> None:
    result, at = claims([*[error] * 9, HELD])
    assert result == Claimed(HELD, None)
    pauses = [later - earlier for earlier, later in pairwise(at)]
    for number, pause in enumerate(pauses):
        whole = min(0.02 * 2**number, BACK_OFF_MAX_S)
        assert whole / 2 <= pause <= whole


def test_at_the_deadline_the_request_is_refused() -> None:
    result, at = claims([Unavailable("down")])
    assert isinstance(result, NoLeader)
    assert (result.outcome, result.retriable) == ("refused", True)
    assert at[-1] <= 10


@pytest.mark.parametrize("error", [Deleted(), StaleGeneration("newer")])
def test_permanent_failures_are_raised(error: Exception) -> None:
    result, at = claims([error])
    assert result is error
    assert at == [0.0]


@pytest.mark.parametrize("outcome", ["unknown", "refused"])
def test_a_full_disk_refuses_the_request(outcome: Any) -> None:
    result, _ = claims([StorageFull("full", outcome=outcome)])
    assert isinstance(result, StorageFull)
    assert (result.outcome, result.retriable) == ("refused", True)


def test_each_claim_needs_a_permit_and_the_tenure_learns_of_a_fencing() -> None:
    permits = Permits()
    result, _ = claims([Fenced("x"), OutcomeUnknown("x"), HELD], permits)
    assert isinstance(result, Claimed)
    assert permits.happened == ["permit", "fenced", "permit", "permit"]


def test_a_refused_permit_ends_the_attempts() -> None:
    result, at = claims([Fenced("x")], Permits(refuse_from=3))
    assert isinstance(result, NotLeader)
    assert len(at) == 2


@pytest.mark.parametrize(
    ("held", "skew"),
    [
        (Held(None, None), None),
        (Held(90, None), None),
        (Held(None, 105), 0),
        (Held(90, 100), 0),
        (Held(90, 110), 0),
        (Held(90, 95), 5),
        (Held(None, 117), -7),
        (Held(94, 95), 5),
        (Held(95, 95), None),
        (Held(200, 200), None),
        (Held(200, 199), None),
    ],
)
def test_the_error_of_a_clock_is_never_overstated(held: Any, skew: int | None) -> None:
    found = written(held, SendTime(100, 0.0), 110)
    assert (None if found is None else found.ahead_ms) == skew
