"""What a run does, as data: drawn from its seed beforehand, so that it can be shortened and kept.

A fault is a kind, a moment, how long it lasts, and a number of its own, from which it draws whatever else
it must decide. Taking one fault away changes nothing about the others. A plan can be written down::

    {"seed": 77, "minutes": 3.0, "workload": "log", "faults": [{"kind": "pause", "at_s": 12.5, ...}, ...]}
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from broker.storage.memory.adversary import CALM, Bias

ALONE: Final = 0.2
"""The share of seeds with a single node."""
SETTLE_S: Final = 4.0
"""At the beginning, before the first fault."""
PAUSE_S: Final = 2.5
EARLY_MS: Final = 6_000
"""Three times what the clocks of two nodes may differ by."""
MOVING: Final = ("kill", "moves")
"""Kinds that every run has, for without new leaders it shows little."""
UNAVAILABLE_MS: Final = 10_000
"""A session's time-out, in which a leader is missed, that of a storage call, and a second."""
CLOCK_OFF_MS: Final = 1_000.0
"""How wrong clocks are where it is judged when messages expire: by less than nodes may differ."""
CLOCK_WILD_MS: Final = 3_600_000.0
"""Where it is not: beyond that messages expire early and late, and nothing prevents it."""
PAUSES_S: Final[Mapping[str, float]] = {"topics": 4.5, "transactions": 4.0, "bounce": 3.0}
"""Of workloads with more processes, so that each acknowledges some hundred messages in three minutes."""


class Fault(NamedTuple):
    """One thing that goes wrong."""

    kind: str
    at_s: float
    lasts_s: float
    draw: int


class Weight(NamedTuple):
    """How often a kind of fault happens beside the others, and how long it lasts in the mean.

    One of weight 0 happens only where a plan names it.
    """

    weight: float
    lasts_s: float


HOSTILE: Final = Bias(
    refused=0.005,
    slow=0.005,
    late_write=0.01,
    never=0.003,
    lost_answer=0.01,
    again=0.02,
    lie=0.01,
    old_false=0.005,
    partial=0.01,
    no_answer=0.005,
    old_answer=0.02,
    short=0.02,
    delay_ms=3.0,
    late_ms=300.0,
    late_make_ms=3000.0,
)
"""Storage as it misbehaves between faults: rarely, since requests are many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run.

    Attributes:
        seed: where all chances come from.
        minutes: how long the workload works, in virtual time.
        workload: its name in the registry.
        nodes: how many there are.
        faults: what goes wrong, in order.
        bias: how storage misbehaves all the time.
        clocks: by how many ms each node's clock is wrong from the start.
        clock_off_ms_max: how wrong faults may set a clock; beyond ``CLOCK_OFF_MS`` it is not judged when
            messages expire. None: by the workload, and judged.
        small: whether nodes have small caches and queues.
        pause_s: for how long a process of the workload rests between two operations, in the mean.
        thin: how much more seldom all happens than usual; waits and lives are longer by as much.
        early_ms: how long before the end of its life a message may be gone for a reader.
        unavailable_ms: how long a topic may acknowledge nothing while nothing is broken; None: not judged.
        goes_on: whether a run in which too little happened goes on for a while, with leaders that move.
        mutant: what is taken away from the product (broker/testing/mutants.py); None: nothing.
        drawn: further options of the command that drew it.
    """

    seed: int
    minutes: float = 3.0
    workload: str = "log"
    nodes: int = 3
    faults: tuple[Fault, ...] = ()
    bias: Bias = HOSTILE
    clocks: tuple[float, ...] = ()
    clock_off_ms_max: float | None = None
    small: bool = False
    pause_s: float = PAUSE_S
    thin: float = 1.0
    early_ms: int = EARLY_MS
    unavailable_ms: int | None = None
    goes_on: bool = False
    mutant: str | None = None
    drawn: str = ""

    def to_json(self) -> str:
        """Return it as a line of text."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["bias"] = dataclasses.asdict(self.bias)
        fields["faults"] = [fault._asdict() for fault in self.faults]
        return json.dumps(fields)

    @classmethod
    def of_json(cls, text: str) -> Plan:
        """Read what ``to_json`` wrote. Raises ValueError, TypeError, KeyError."""
        fields: dict[str, Any] = json.loads(text)
        fields["bias"] = Bias(**fields["bias"])
        fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
        fields["clocks"] = tuple(fields["clocks"])
        return cls(**fields)


def draw_plan(
    seed: int,
    *,
    minutes: float,
    workloads: Sequence[str],
    kinds: Mapping[str, Weight],
    mutant: str | None = None,
    thin: float = 1.0,
) -> Plan:
    """Draw a plan from a seed: workloads take turns, faults come every few seconds.

    With ``thin`` everything happens so many times more seldom: hours that cost what minutes do.
    """
    chance = random.Random(f"{seed}/plan")
    nodes = 1 if random.Random(f"{seed}/nodes").random() < ALONE else 3
    workload = workloads[seed % len(workloads)]
    plan = Plan(
        seed=seed,
        minutes=minutes,
        workload=workload,
        nodes=nodes,
        faults=tuple(draw_faults(chance, minutes * 60, kinds, thin)),
        bias=CALM if chance.random() < 0.1 else HOSTILE,
        clocks=tuple(_clock_off_ms(chance) for _ in range(nodes)),
        small=chance.random() < 0.3,
        clock_off_ms_max=CLOCK_WILD_MS if chance.random() < 0.3 else CLOCK_OFF_MS,
        pause_s=PAUSES_S.get(workload, PAUSE_S) * thin,
        thin=thin,
        goes_on=True,
        mutant=mutant,
    )
    if plan.clock_off_ms_max == CLOCK_WILD_MS:
        return plan  # A node with a wrong clock leads nothing until somebody starts it again.
    return replace(plan, unavailable_ms=UNAVAILABLE_MS)


def draw_faults(
    chance: random.Random, until_s: float, kinds: Mapping[str, Weight], thin: float = 1.0
) -> list[Fault]:
    """Draw faults, of a few kinds that this run has, more or less dense."""
    drawn = sorted(kind for kind in kinds if kinds[kind].weight > 0)
    some = chance.sample(drawn, k=min(len(drawn), chance.randint(6, 12)))
    some += [kind for kind in MOVING if kind in drawn and kind not in some]
    weights = [kinds[kind].weight for kind in some]
    every_s = chance.choice([3.0, 6.0, 10.0]) * thin
    faults: list[Fault] = []
    at_s = SETTLE_S
    while (at_s := at_s + chance.expovariate(1 / every_s)) < until_s - 1:
        kind = chance.choices(some, weights)[0]
        lasts_s = min(chance.expovariate(1 / kinds[kind].lasts_s), 4 * kinds[kind].lasts_s)
        faults.append(Fault(kind, round(at_s, 3), round(lasts_s, 3), chance.getrandbits(32)))
    return faults


def _clock_off_ms(chance: random.Random) -> float:
    """Return how wrong a clock is from the start: mostly a little."""
    return round(chance.uniform(-400, 400), 1) if chance.random() < 0.7 else 0.0
