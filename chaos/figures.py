"""The counts and longest silences of a history. It does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.history import WRITES, Operation, availability_name

FAULT: Final = "fault"
MENDING: Final = "mending"
"""The kind of the repairs at the end of a segment. They do not count as a fault."""
_S: Final = 1_000_000_000


@dataclass(slots=True)
class RunFigures:
    """Counts of one run or of several.

    Attributes:
        operations: The number of calls by operation and outcome: ``publish ok``.
        acknowledged: The number of acknowledged publishes, changes of registers and puts of rowlogs.
        messages: The number of messages in them.
        faults: The number of windows with each kind of fault.
        happened: The number of these with evidence that the fault happened.
        times: The number of repetitions of each kind of fault.
        unavailable_s: The longest time between two acknowledgements of one topic, register or rowlog.
        silent_well_s: The longest silence of one of them that the checkers count, which is without a fault.
        seconds: How long the workloads ran.
    """

    operations: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    unavailable_s: float = 0.0
    silent_well_s: float = 0.0
    seconds: float = 0.0

    def add(self, other: RunFigures) -> None:
        """Add the counts of another run."""
        self.operations += other.operations
        self.acknowledged += other.acknowledged
        self.messages += other.messages
        self.faults += other.faults
        self.happened += other.happened
        self.times += other.times
        self.unavailable_s = max(self.unavailable_s, other.unavailable_s)
        self.silent_well_s = max(self.silent_well_s, other.silent_well_s)
        self.seconds += other.seconds

    def as_json(self) -> dict[str, Any]:
        """Return the counts as ``verdict.json`` has them."""
        return {
            "seconds": round(self.seconds, 1),
            "operations": dict(sorted(self.operations.items())),
            "acknowledged": self.acknowledged,
            "messages": self.messages,
            "faults": {
                kind: {
                    "windows": count,
                    "happened": self.happened[kind],
                    "times": self.times[kind],
                }
                for kind, count in sorted(self.faults.items())
            },
            "longest_unavailable_s": round(self.unavailable_s, 2),
            "longest_silent_when_well_s": round(self.silent_well_s, 2),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> RunFigures:
        """Return the counts in a ``verdict.json``. Raises KeyError."""
        faults = told["faults"]
        return cls(
            operations=Counter(told["operations"]),
            acknowledged=told["acknowledged"],
            messages=told["messages"],
            faults=Counter({kind: one["windows"] for kind, one in faults.items()}),
            happened=Counter({kind: one["happened"] for kind, one in faults.items()}),
            times=Counter({kind: one["times"] for kind, one in faults.items()}),
            unavailable_s=told["longest_unavailable_s"],
            silent_well_s=told.get("longest_silent_when_well_s", 0.0),  # Older files lack it.
            seconds=told["seconds"],
        )


def figures_of(calls: Sequence[Operation]) -> RunFigures:
    """Count the calls and faults of a history."""
    figures = RunFigures(unavailable_s=longest_gap_s(calls))
    for call in calls:
        if call.op == FAULT:
            _count_fault(figures, call)
            continue
        figures.operations[f"{call.op} {call.outcome}"] += 1
        if call.op in WRITES and call.is_ok:
            figures.acknowledged += 1
            figures.messages += len(call.asked.get("payloads", ()))
    return figures


def _count_fault(figures: RunFigures, call: Operation) -> None:
    kind = call.asked["kind"]
    if kind == MENDING:
        return
    figures.faults[kind] += 1
    happened = bool(call.told.get("happened"))
    figures.happened[kind] += happened
    figures.times[kind] += call.told.get("times", int(happened))


def longest_gap_s(calls: Iterable[Operation]) -> float:
    """Return the longest time between two acknowledgements of one topic, register or rowlog."""
    last: dict[str, int] = {}
    longest = 0
    done = [
        (availability_name(call.op, call.topic, call.asked), call) for call in calls if call.is_ok
    ]
    for name, call in sorted(done, key=lambda one: one[1].ended_ns or 0):
        if name is not None and call.ended_ns is not None:
            longest = max(longest, call.ended_ns - last.get(name, call.ended_ns))
            last[name] = call.ended_ns
    return longest / _S
