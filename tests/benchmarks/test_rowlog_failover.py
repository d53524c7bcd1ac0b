from benchmarks.rowlog.failover import figures_of


def test_the_longest_time_decides_whether_the_promise_was_kept() -> None:
    kept = figures_of([3.1, 4.2, 5.0])
    assert (kept["kills"], kept["p50_s"], kept["max_s"], kept["within_bound"]) == (
        3,
        4.2,
        5.0,
        True,
    )
    assert kept["bound_s"] == kept["session_timeout_s"] + 1
    assert not figures_of([3.1, 4.2, 5.01])["within_bound"]
