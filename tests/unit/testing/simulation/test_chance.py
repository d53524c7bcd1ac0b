"""All random numbers of a run come from its seed."""

import random
import secrets
import uuid

from broker.testing.simulation.chance import seeded


def drawn(seed: int) -> list[object]:
    with seeded(seed):
        return [
            random.random(),  # noqa: TID251 - The generator of the module is seeded, too.
            random.Random().random(),
            secrets.token_bytes(),
            secrets.token_hex(8),
            secrets.randbelow(1 << 40),
            secrets.randbits(64),
            uuid.uuid4(),
        ]


def test_runs_of_one_seed_draw_the_same_and_others_do_not() -> None:
    first, again, other = drawn(1), drawn(1), drawn(2)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
