import random

from chaos.schedule import FaultWindow, windows

FAULTS = ["kill", "pause", "partition", "latency", "clock-back", "session", "leaders", "drop"]


def drawn(seconds: float = 3600, seed: int = 1, **options: object) -> list[FaultWindow]:
    return windows(FAULTS, seconds, random.Random(seed), **options)  # type: ignore[arg-type]


def test_windows_follow_each_other_from_the_beginning_to_the_end() -> None:
    for seed in range(20):
        made = drawn(600, seed)
        assert made[0].begins_s == 0
        assert made[-1].ends_s == 600
        assert [one.ends_s for one in made[:-1]] == [one.begins_s for one in made[1:]]


def test_a_window_takes_ten_to_thirty_seconds() -> None:
    lengths = [one.ends_s - one.begins_s for one in drawn()]
    assert min(lengths) >= 10
    # The last window takes the rest, if the rest is too short for a window.
    assert max(lengths[:-1]) <= 30
    assert lengths[-1] <= 40


def test_about_a_quarter_is_healthy() -> None:
    made = drawn(36_000)
    healthy = sum(not one.faults for one in made)
    assert 0.15 < healthy / len(made) < 0.35


def test_faults_are_together_but_not_too_many_nor_twice() -> None:
    made = drawn(36_000)
    counts = {len(one.faults) for one in made}
    assert counts == {0, 1, 2, 3}
    assert all(len(set(one.faults)) == len(one.faults) for one in made)
    assert {len(one.faults) for one in drawn(3600, together=(2, 2))} == {0, 2}


def test_no_fault_has_more_than_one_window_more_than_another() -> None:
    counts = dict.fromkeys(FAULTS, 0)
    for one in drawn(3600):
        for name in one.faults:
            counts[name] += 1
            assert max(counts.values()) - min(counts.values()) <= 1


def test_a_short_run_has_a_fault() -> None:
    for seed in range(50):
        assert drawn(5, seed)[0].faults


def test_without_faults_all_windows_are_healthy() -> None:
    assert all(not one.faults for one in windows([], 300, random.Random(1)))


def test_the_same_seed_draws_the_same() -> None:
    assert drawn(600, 7) == drawn(600, 7)
    assert drawn(600, 7) != drawn(600, 8)


def test_faults_of_one_group_are_not_together() -> None:
    groups = {"clock-back": "g", "pause": "g", "kill": "g"}
    made = drawn(36_000, groups=groups)
    assert all(sum(name in groups for name in one.faults) <= 1 for one in made)
    assert {name for one in made for name in one.faults} == set(FAULTS)


def test_each_fault_has_a_window_if_each_must_happen_and_the_time_allows() -> None:
    groups = dict.fromkeys(FAULTS[:4], "g")
    for seed in range(200):
        chance = random.Random(seed)
        made = windows(FAULTS[:4], 120, chance, groups=groups, each=True)
        assert {name for one in made for name in one.faults} == set(FAULTS[:4])
    healthy = sum(not one.faults for one in drawn(36_000, each=True))
    assert healthy > 100, "after each fault had a window, a quarter of the windows is healthy again"
