import pytest

from broker.routing.routing import GRACE_S, LOOK_S, LeaderChanged, unless_moved
from broker.testing.virtual_time import VirtualLoop, pass_time, simulate


def run(answer_s: float, moves_s: float) -> tuple[str, float]:
    """Return the end of a request, and its duration in seconds."""

    async def main(loop: VirtualLoop) -> tuple[str, float]:
        try:
            asking = pass_time(answer_s, "answer")
            end = await unless_moved(asking, lambda: loop.time() >= moves_s)
        except LeaderChanged:
            end = "given up"
        return str(end), loop.time()

    return simulate(main)


def test_an_answer_is_returned() -> None:
    assert run(100.0, 1e9) == ("answer", pytest.approx(100.0))


def test_a_leader_that_hands_over_may_still_answer() -> None:
    assert run(5 + GRACE_S / 2, 5.0) == ("answer", pytest.approx(5 + GRACE_S / 2))


@pytest.mark.parametrize("moves_s", [0.1, 1.0, 7.3])
def test_a_silent_leader_is_given_up(moves_s: float) -> None:
    end, after_s = run(1e9, moves_s)
    assert end == "given up"
    assert moves_s + GRACE_S <= after_s <= moves_s + GRACE_S + LOOK_S + 1e-6


def test_an_error_is_raised() -> None:
    async def main(_: VirtualLoop) -> None:
        async def failing() -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await unless_moved(failing(), lambda: 1)

    simulate(main)
