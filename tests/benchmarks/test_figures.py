import pytest

from benchmarks.figures import Ratio, Run, Series, best, compare, judged, percentile
from benchmarks.harness import kept_turns


def series(name: str, *values: float, apart: int = 0, wanted: int = 3) -> Series:
    """Return a series of kept runs, and ``apart`` runs that do not count."""
    runs = [Run(value=value) for value in values]
    runs += [Run(value=1e9, apart="others used 1.00 cores")] * apart
    return Series(name=name, unit="msg/s", runs=runs, runs_wanted=wanted)


def test_runs_kept_apart_do_not_count() -> None:
    one = series("ours", 10, 12, 11, apart=3)
    assert (one.median, one.spread, len(one.kept)) == (11, pytest.approx(2 / 11), 3)
    assert one.unusable == ""


def test_a_ratio_is_met_or_missed() -> None:
    ours = series("ours", 10, 10, 10)
    assert compare(ours, series("peer", 8, 8, 8), must=1.2).verdict == "met"
    assert compare(ours, series("peer", 9, 9, 9), must=1.2).verdict == "missed"
    assert compare(ours, series("peer", 9, 9, 9)).verdict == "for information"


def test_a_ratio_compares_runs_of_the_same_turn() -> None:
    # For both sides the machine is twice as fast in each turn as in the turn before.
    ours, peer = series("ours", 10, 20, 40), series("peer", 5, 10, 20)
    assert ours.unusable == "no result: the runs of ours lie 150% apart"
    assert compare(ours, peer, must=2.0).value == 2
    assert compare(ours, peer, must=2.0).verdict == "met"


def test_turns_that_lie_far_apart_on_one_side_of_the_bound_are_judged() -> None:
    ours, peer = series("ours", 10, 10, 10), series("peer", 1, 2, 3)
    assert compare(ours, peer, must=2.0).verdict == "met"
    assert compare(ours, peer, must=20.0).verdict == "missed"
    assert compare(ours, peer, must=5.0).verdict == "no result"


def test_a_turn_counts_if_both_were_kept() -> None:
    ours, peer = series("ours", 10, 10, 10, 10), series("peer", 5, 5, 5, 5)
    ours.runs[0] = Run(value=1, apart="stolen")
    peer.runs[1] = Run(value=1, apart="stolen")
    assert compare(ours, peer).why == "no result: both were kept in 2 turns, 3 are wanted"
    assert kept_turns([ours, peer]) == 2


def test_less_may_be_better() -> None:
    assert judged("latency", 1.9, must=2.0, at_most=True).verdict == "met"
    assert judged("latency", 2.1, must=2.0, at_most=True).verdict == "missed"


@pytest.mark.parametrize(
    ("peer", "verdict", "why"),
    [
        (series("peer", 8, 8, apart=9), "no result", "2 kept runs"),
        (series("peer", 8, 8, 8, apart=4), "no result", "more than half"),
        (series("peer", 0.0075, 0.01, 0.0125), "no result", "90.00 to 116.67"),
        (Series(name="peer", unit="msg/s", absent="no Java"), "not measured", "no Java"),
    ],
)
def test_a_ratio_without_a_verdict_says_why(peer: Series, verdict: str, why: str) -> None:
    ratio: Ratio = compare(series("ours", 1, 1, 1), peer, must=100)
    assert ratio.verdict == verdict
    assert why in ratio.why


def test_the_best_peer_is_a_usable_one() -> None:
    doubtful, slow, fast = series("doubtful", 50), series("slow", 5, 5, 5), series("fast", 7, 7, 7)
    assert best([doubtful, slow, fast]) is fast
    assert best([doubtful]) is doubtful
    assert best([Series(name="absent", unit="msg/s", absent="not there")]) is None


def test_percentiles() -> None:
    values = [float(number) for number in range(100)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (
        50,
        99,
        99,
    )
