"""What is told of runs: totals, and of a bad one what happened around it, and the command."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker.testing.checkers import Verdict, Violation
from broker.testing.history import Event
from broker.testing.simulation.__main__ import command_of
from broker.testing.simulation.plan import Plan
from broker.testing.simulation.report import Totals, told
from broker.testing.simulation.run import Outcome
from broker.testing.simulation.trace import Line

PLAN = Plan(seed=77, minutes=3, workload="log", without=("dedupe",), drawn="--thin 2")


def event(second: float, kind: str, **value: Any) -> Event:
    return Event("p0", kind, "publish", "t", value, None, None, None, int(second * 1e9))  # type: ignore[arg-type]


def outcome(
    *violations: Violation, acknowledged: int = 300, unjudged: tuple[str, ...] = ()
) -> Outcome:
    return Outcome(
        PLAN,
        Verdict(violations, True, {"longest_unavailable_ms": 7500}, unjudged),
        [event(1, "invoke", payloads=["long ago"]), event(20, "invoke"), event(21, "ok")],
        [Line(20.5, "node-1.2", "topic claimed", {"epoch": 3})],
        acknowledged,
        unknown=2,
        epochs=5,
        faults=Counter(kill=2, pause=1, moves=1),
        happened=Counter(lies=1),
        seconds=190.0,
    )


def test_a_bad_run_shows_what_is_wrong_what_happened_and_how_to_see_it_again() -> None:
    bad = told(outcome(Violation("duplicated", "p0:1", place=2)), command_of(PLAN))
    lines = bad.report.splitlines()
    assert lines[0] == "duplicated: p0:1"
    around = [line.split(maxsplit=1) for line in lines if line.startswith("   ")]
    assert [second for second, _ in around] == ["20.000", "20.500", "21.000"]
    assert around[1][1].startswith("node-1.2")
    assert around[2][1].startswith(">> p0 publish ok")
    assert lines[-1] == (
        "run it again: python -m broker.testing.simulation --seed 77 --minutes 3 --workload log "
        "--without dedupe --thin 2"
    )


def test_totals_count_what_is_bad_and_what_is_empty() -> None:
    totals = Totals()
    for one in (
        outcome(),
        outcome(Violation("duplicated", "p0:1")),
        outcome(acknowledged=299, unjudged=("unavailable",)),
    ):
        totals.add(told(one, "").totals)
    assert (totals.runs, totals.bad, totals.empty) == (3, 1, 1)
    first, faults, happened, availability = totals.lines()
    assert first.startswith("3 seeds, 1 bad, 1 empty: 899 messages acknowledged, 6 unknown")
    assert faults == "  faults: kill 6, moves 3, pause 3"
    assert happened.endswith("lies 3")
    assert availability == (
        "  availability: judged in 2 of 3, longest silence while nothing was broken 7.5 s"
    )


def test_a_good_run_needs_no_report_and_has_a_fingerprint() -> None:
    good = told(outcome(), "")
    assert good.report == ""
    assert good.is_enough
    assert outcome().digest in good.line
