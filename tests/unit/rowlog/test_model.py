"""Random runs with crashes between any two steps: every rule of the rowlog is kept."""

import pytest

from broker.testing.simulation.chance import seeded
from broker.testing.virtual_time import VirtualLoop, simulate
from tests.plugins.seeds import first_seed
from tests.unit.rowlog.model import Run
from tests.unit.rowlog.world import World

SEED = first_seed()


def wrong(seed: int, steps: int = 40) -> list[str]:
    async def main(loop: VirtualLoop) -> list[str]:
        world = World(loop)
        try:
            return await Run(world, seed).run(steps)
        finally:
            await world.close()

    with seeded(seed):
        return simulate(main)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_a_random_run_keeps_every_rule(number: int) -> None:
    seed = SEED + number
    assert wrong(seed) == [], f"seed {seed}"


@pytest.mark.nightly
def test_many_random_runs_keep_every_rule() -> None:
    for seed in range(SEED, SEED + 400):
        assert wrong(seed, 80) == [], f"seed {seed}"
