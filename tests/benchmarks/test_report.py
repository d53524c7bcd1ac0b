from typing import Any

from benchmarks import machine, report
from benchmarks.figures import Question, Run, Series, compare

RAW = [{"per_second": 4000.0, "p50_ms": 0.2, "p99_ms": 0.9}]


def results() -> dict[str, Any]:
    """Return results with one missing side and one run that does not count."""
    question = Question(letter="b", title="one message a request")
    runs = [Run(value=1000.0, p50_ms=2.5, p99_ms=4.0, server_cpu_us=30.0)] * 2
    apart = Run(value=400.0, apart="others used 0.50 cores")
    ours = Series(name="ours", unit="msg/s", runs=[*runs, apart], runs_wanted=2, acks_per_sync=31.0)
    peer = Series(name="peer", unit="msg/s", runs=[Run(value=800.0)] * 2, runs_wanted=2)
    gone = Series(name="gone", unit="msg/s", absent="it is not installed")
    question.series += [ours, peer, gone]
    question.ratios += [compare(ours, peer, must=1.5), compare(ours, gone, must=1.5)]
    found = {**machine.described(), "quick": False, "raw_sync": RAW}
    return {**found, "questions": [question.as_json()]}


def test_the_text_has_every_figure_and_verdict() -> None:
    said = report.as_text(results())
    for piece in ("1,000 msg/s", "2 of 3", "31.0", "not measured", "1.25", ">= 1.5: missed"):
        assert piece in said


def test_the_page_has_the_runs_kept_apart_and_the_raw_rate() -> None:
    page = report.as_markdown(results())
    assert page.startswith("# Benchmarks\n")
    for piece in ("4,000 times a second", "Runs kept apart: 1", "others used 0.50 cores"):
        assert piece in page
