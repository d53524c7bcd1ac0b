"""What is looked at, and that nothing is missed by not looking."""

from hypothesis import given
from hypothesis import strategies as st

from broker.storage.lives import ROWS_MAX, Lives

FIRST, LAST = b"", b"\xff"


def key(number: int) -> bytes:
    return b"%06d" % number


class Log:
    """Rows with the ends of their lives, and a sweeper's round over them."""

    def __init__(self) -> None:
        self.lives = Lives()
        self.ends: dict[bytes, int | None] = {}
        self.floor = self.count = 0

    def add(self, ends_ms: list[int | None]) -> None:
        for end_ms in ends_ms:
            self.ends[key(self.count)] = end_ms
            self.count += 1

    def sweep(self, before_ms: int, at_once: int, *, hidden: int = 0) -> int:
        """Make a round; return at how many rows it looked. ``hidden`` rows at the end are not shown."""
        looked = 0
        lives, stop = self.lives, key(self.count)
        shown = sorted(self.ends)[: len(self.ends) - hidden]
        lives.begin()
        while asked := lives.next(before_ms, key(self.floor), stop):
            there = [row for row in shown if asked[0] <= row < asked[1]]
            rows, more = there[:at_once], len(there) > at_once
            looked += len(rows)
            left = [end for row in rows if (end := self.ends[row]) is not None]
            for row in rows:
                end = self.ends[row]
                if end is not None and end < before_ms:
                    del self.ends[row]
            shown = [row for row in shown if row in self.ends]
            due_ms = min((end for end in left if end >= before_ms), default=None)
            lives.looked(asked, rows, more=more, due_ms=due_ms)
        lives.end()
        return looked

    def overdue(self, before_ms: int) -> list[bytes]:
        return [
            row
            for row, end in self.ends.items()
            if end is not None and end < before_ms and row >= key(self.floor)
        ]


ENDS = st.lists(st.none() | st.integers(0, 100), max_size=8)
ROUNDS = st.lists(st.tuples(ENDS, st.integers(0, 15), st.integers(0, 8)), max_size=8)


@given(ROUNDS, st.integers(1, 4))
def test_after_each_round_no_life_is_over(
    rounds: list[tuple[list[int | None], int, int]], at_once: int
) -> None:
    log, now_ms = Log(), 0
    for ends, later_ms, floor in rounds:
        log.add(ends)
        now_ms += later_ms
        log.floor = max(log.floor, min(floor, log.count))
        log.sweep(now_ms, at_once)
        assert not log.overdue(now_ms)


def test_a_row_is_looked_at_once_and_when_it_is_due() -> None:
    log = Log()
    log.add([None] * 50 + [30] + [None] * 49)
    assert log.sweep(10, 10) == 100
    assert log.sweep(20, 10) == 0
    log.add([None] * 5)
    assert log.sweep(30, 10) == 5
    assert log.sweep(31, 10) == 10
    assert not log.overdue(31)
    assert log.sweep(99, 10) == 0


def test_a_log_without_short_lives_is_looked_at_once_however_long_it_is() -> None:
    log = Log()
    log.add([None] * 10_000)
    assert log.sweep(10, 1000) == 10_000
    assert [log.sweep(now_ms, 1000) for now_ms in range(11, 14)] == [0, 0, 0]
    assert log.lives._stretches == []


def test_rows_that_an_old_answer_lacked_are_looked_at_later() -> None:
    log = Log()
    log.add([None, 20, 20, 20])
    log.sweep(10, 10, hidden=2)
    log.sweep(15, 10)
    log.sweep(21, 10)
    assert not log.overdue(21)


def test_what_sweeps_see_little_by_little_is_joined() -> None:
    log = Log()
    for _ in range(500):
        log.add([1_000_000] * 10)
        log.sweep(10, 2_000)
    assert 5_000 // ROWS_MAX <= len(log.lives._stretches) <= 2 * 5_000 // ROWS_MAX


def test_what_the_floor_has_passed_is_forgotten() -> None:
    log = Log()
    log.add([1_000] * 10)
    log.sweep(10, 10)
    log.floor = 10
    log.add([None])
    assert log.sweep(2_000, 10) == 1
    assert log.lives._stretches == []
