import random
from itertools import pairwise

import pytest

from broker.errors import OutcomeUnknown, Unavailable
from broker.storage.cells import CellsError
from broker.storage.retrying import PAUSE_S_MAX, Retrying
from broker.testing.clock import VirtualClock, simulate


def run(story, call_s=5.0):
    async def main(loop):
        await story(Retrying(VirtualClock(loop), call_s, random.Random(1)))

    simulate(main)


def test_pauses_grow_up_to_a_bound_and_end_at_the_deadline():
    async def story(retrying):
        begun = retrying.clock.monotonic()
        pauses, moments = retrying.pauses(retrying.deadline()), []
        while retrying.clock.monotonic() - begun < 5.0:
            await pauses.next("the state")
            moments.append(retrying.clock.monotonic() - begun)
        with pytest.raises(OutcomeUnknown, match="the state"):
            await pauses.next("the state")
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        assert gaps[0] < 0.05
        assert max(gaps) <= PAUSE_S_MAX * 1.5
        assert moments[-1] == pytest.approx(5.0)

    run(story)


def test_a_read_is_repeated_until_it_is_answered():
    async def story(retrying):
        failures = [1] * 3

        async def call():
            if failures:
                failures.pop()
                raise CellsError("no answer")
            return "answer"

        assert await retrying.read(call) == "answer"

    run(story)


def test_a_read_that_nobody_answers_is_unavailable():
    async def story(retrying):
        async def call():
            raise CellsError("no answer")

        with pytest.raises(Unavailable, match="no answer"):
            await retrying.read(call)

    run(story)
