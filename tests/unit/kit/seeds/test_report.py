"""Reports of runs: totals, and for a bad run its violations, the events around them, and its command."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker.testing.simulation.trace import Trace, TraceLine
from chaos.checkers import Verdict, Violation
from chaos.history import Event
from tests.kit.seeds.__main__ import command_of, main
from tests.kit.seeds.plan import Plan
from tests.kit.seeds.report import Totals, summary_of
from tests.kit.seeds.run import Outcome, leader_changes

PLAN = Plan(seed=77, minutes=3, workload="log", mutant="dedupe", drawn="--thin 2")


def event(second: float, kind: str, **value: Any) -> Event:
    return Event("p0", kind, "publish", "t", value, None, None, None, int(second * 1e9))  # type: ignore[arg-type]


def outcome(
    *violations: Violation,
    acknowledged: int = 300,
    leaders: int = 5,
    unjudged: tuple[str, ...] = (),
) -> Outcome:
    return Outcome(
        PLAN,
        Verdict(violations, True, {"longest_unavailable_ms": 7500}, unjudged),
        [event(1, "invoke", payloads=["long ago"]), event(20, "invoke"), event(21, "ok")],
        [TraceLine(20.5, "node-1.2", "topic claimed", {"epoch": 3})],
        acknowledged,
        unknown=2,
        epochs=8,
        leaders=leaders,
        faults=Counter(kill=2, pause=1, moves=1),
        happened=Counter(lies=1),
        seconds=190.0,
    )


def test_a_bad_run_reports_violations_events_and_its_command() -> None:
    bad = summary_of(outcome(Violation("duplicated", "p0:1", place=2)), command_of(PLAN))
    lines = bad.report.splitlines()
    assert lines[0] == "duplicated: p0:1"
    around = [line.split(maxsplit=1) for line in lines if line.startswith("   ")]
    assert [second for second, _ in around] == ["20.000", "20.500", "21.000"]
    assert around[1][1].startswith("node-1.2")
    assert around[2][1].startswith(">> p0 publish ok")
    assert lines[-1] == (
        "run it again: python -m tests.kit.seeds --seed 77 --minutes 3 --workload log "
        "--mutant dedupe --thin 2"
    )


@pytest.mark.parametrize("words", [[], ["--shrink"]])
def test_a_plan_in_a_file_is_repeated_from_a_file(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "a plan.json"
    file.write_text(PLAN.to_json())
    bad = outcome(Violation("duplicated", "p0:1", place=2))
    monkeypatch.setattr("tests.kit.seeds.__main__.simulate", lambda _: bad)
    assert main(["--plan", str(file), *words]) == 1
    again = [line for line in capsys.readouterr().out.splitlines() if "run it again" in line]
    place = "FILE" if words else f"'{file}'"
    assert again == [f"run it again: python -m tests.kit.seeds --plan {place}"]


def test_totals_count_bad_and_empty_runs() -> None:
    totals = Totals()
    for one in (
        outcome(),
        outcome(Violation("duplicated", "p0:1")),
        outcome(acknowledged=299, unjudged=("unavailable",)),
        outcome(leaders=4),
    ):
        totals.add(summary_of(one, "").totals)
    assert (totals.runs, totals.bad, totals.empty) == (4, 1, 2)
    first, faults, happened, availability = totals.lines()
    assert first.startswith("4 seeds, 1 bad, 2 empty: 1199 messages acknowledged, 8 unknown")
    assert "32 epochs, 19 changes of leaders" in first
    assert faults == "  faults: kill 8, moves 4, pause 4"
    assert happened.endswith("lies 4")
    assert availability == (
        "  availability: judged in 3 of 4, longest silence without a fault 7.5 s"
    )


def test_a_leader_changes_when_another_process_claims_its_topic() -> None:
    claims = [("a", "node-0.1"), ("b", "node-1.1"), ("a", "node-0.1"), ("a", "node-0.2")]
    claims += [("a", "node-1.1"), ("b", "node-1.1")]
    lines = [
        TraceLine(1.0, process, "topic claimed", {"topic": topic}) for topic, process in claims
    ]
    assert leader_changes([*lines, TraceLine(2.0, "node-2.1", "topic let go", {"topic": "a"})]) == 2


def test_the_judged_lines_of_a_trace_are_kept_beyond_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> Trace:
        trace = Trace()
        trace.unhandled({"message": "the first line"})
        for _ in range(10):
            trace.add("a line")
        return trace

    monkeypatch.setattr("broker.testing.simulation.trace.LINES_MAX", 5)
    trace = asyncio.run(main())
    assert [line.event for line in trace.lines] == ["a line"] * 5
    assert [line.fields["message"] for line in trace.judged] == ["the first line"]


def test_a_good_run_needs_no_report_and_has_a_fingerprint() -> None:
    good = summary_of(outcome(), "")
    assert good.report == ""
    assert good.is_enough
    assert outcome().digest in good.line
