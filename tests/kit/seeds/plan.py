"""The plan of a run, as data: it is drawn from the seed before the run, so that it can be shortened and saved.

A fault is a kind, a start, a duration, and its own number, from which it draws all its other choices. So removing one
fault does not change the others. A plan can be saved as JSON::

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
"""The time at the beginning without faults."""
PAUSE_S: Final = 2.5
EARLY_MS: Final = 6_000
"""Three times the allowed difference between two nodes' clocks."""
MOVING: Final = ("kill", "moves")
"""Kinds of every run: a run without new leaders tests little."""
UNAVAILABLE_MS: Final = 10_000
"""The sum of a session's timeout, after which a dead leader is replaced, a storage call's timeout, and a second."""
CLOCK_OFF_MS: Final = 1_000.0
"""The largest clock error in runs that judge expiry: less than the allowed difference between nodes."""
CLOCK_WILD_MS: Final = 3_600_000.0
"""The largest clock error in other runs. With such clocks messages expire early and late, and no guard prevents it."""
PAUSES_S: Final[Mapping[str, float]] = {"topics": 4.5, "transactions": 4.0, "bounce": 3.0}
"""The pauses of workloads with more processes: each acknowledges some hundred messages in three minutes."""


class Fault(NamedTuple):
    """One fault of a plan."""

    kind: str
    at_s: float
    lasts_s: float
    draw: int


class Weight(NamedTuple):
    """The relative frequency of a kind of fault, and its mean duration.

    A kind of weight 0 happens only if a plan names it.
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
"""The faults of storage between the planned faults: rare, because requests are many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run.

    Attributes:
        seed: the source of all random choices.
        minutes: the duration of the workload, in virtual time.
        workload: its name in the registry.
        nodes: the number of nodes.
        faults: the faults, in order.
        bias: the faults of storage during the whole run.
        clocks: the error of each node's clock at the start, in ms.
        clock_off_ms_max: the largest error that faults may give a clock; above ``CLOCK_OFF_MS`` expiry is not
            judged. None: the workload decides, and expiry is judged.
        small: True if nodes have small caches and queues.
        pause_s: the mean pause of a workload's process between two operations.
        thin: the factor by which all events are rarer; waits and lives are longer by the same factor.
        early_ms: how long before the end of its life a message may be gone for a reader.
        unavailable_ms: how long a topic may acknowledge no publish without a fault; None: not judged.
        goes_on: True if a run with too few events goes on for a while, with topics that move.
        mutant: the guard that is removed from the product (broker/testing/mutants.py), or None.
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

    With ``thin`` all events are so many times rarer: an hour costs as much as some minutes.
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
        return plan  # A node with a wrong clock leads no topic until it is restarted.
    return replace(plan, unavailable_ms=UNAVAILABLE_MS)


def draw_faults(
    chance: random.Random, until_s: float, kinds: Mapping[str, Weight], thin: float = 1.0
) -> list[Fault]:
    """Draw faults of some kinds, with a drawn frequency."""
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
    """Draw the error of a clock at the start, mostly a small one."""
    return round(chance.uniform(-400, 400), 1) if chance.random() < 0.7 else 0.0
