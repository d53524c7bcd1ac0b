"""What is looked at, and that nothing is missed by not looking."""

from hypothesis import given
from hypothesis import strategies as st

from broker.storage.lives import ROWS_MAX, Lives


def key(number: int) -> bytes:
    return b"%06d" % number


class Log:
    """Rows with the ends of their lives, some of them there before the hold, and its sweeper's rounds."""

    def __init__(self, found: list[int | None]) -> None:
        self.lives = Lives()
        self.ends = {key(number): end_ms for number, end_ms in enumerate(found)}
        self.floor, self.count = 0, len(found)

    def write(self, ends_ms: list[int | None]) -> None:
        if not ends_ms:
            return
        rows = [key(self.count + number) for number in range(len(ends_ms))]
        due_ms = min((end for end in ends_ms if end is not None), default=None)
        self.lives.wrote(rows[0], rows[-1], len(rows), due_ms)
        self.ends.update(zip(rows, ends_ms, strict=True))
        self.count += len(rows)

    def sweep(self, before_ms: int, at_once: int, *, hidden: int = 0) -> int:
        """Make a round; return at how many rows it looked. ``hidden`` rows at the end are not shown."""
        looked = 0
        lives, stop = self.lives, key(self.count - 1)
        shown = sorted(self.ends)[: len(self.ends) - hidden]
        lives.begin()
        while asked := lives.next(before_ms, key(self.floor), stop):
            there = [row for row in shown if asked[0] <= row < asked[1] and row in self.ends]
            rows, more = there[:at_once], len(there) > at_once
            looked += len(rows)
            ends_ms = [end_ms for row in rows if (end_ms := self.ends[row]) is not None]
            for row in rows:
                end_ms = self.ends[row]
                if end_ms is not None and end_ms < before_ms:
                    del self.ends[row]
            due_ms = min((end_ms for end_ms in ends_ms if end_ms >= before_ms), default=None)
            lives.looked(asked, rows, more=more, due_ms=due_ms)
        lives.end()
        return looked

    def overdue(self, before_ms: int) -> list[bytes]:
        """Return what should have gone: not the last row, which is never removed."""
        return [
            row
            for row, end_ms in self.ends.items()
            if end_ms is not None
            and end_ms < before_ms
            and key(self.floor) <= row < key(self.count - 1)
        ]


ENDS = st.lists(st.none() | st.integers(0, 100), max_size=8)
ROUNDS = st.lists(
    st.tuples(st.lists(ENDS, max_size=3), st.integers(0, 15), st.integers(0, 12)), max_size=8
)


@given(ENDS, ROUNDS, st.integers(1, 4))
def test_after_each_round_no_life_is_over(
    found: list[int | None],
    rounds: list[tuple[list[list[int | None]], int, int]],
    at_once: int,
) -> None:
    log, now_ms = Log([None, *found]), 0
    for batches, later_ms, floor in rounds:
        for ends_ms in batches:
            log.write(ends_ms)
        now_ms += later_ms
        log.floor = max(log.floor, min(floor, log.count - 1))
        log.sweep(now_ms, at_once)
        assert not log.overdue(now_ms)


def test_a_row_that_was_there_is_looked_at_once_and_when_it_is_due() -> None:
    log = Log([None] * 50 + [30] + [None] * 50)
    assert log.sweep(10, 10) == 100  # All but the last row, which stays in any case.
    assert log.sweep(20, 10) == 0
    log.write([None])
    assert log.sweep(30, 10) == 1
    assert log.sweep(31, 10) == 10
    assert not log.overdue(31)
    assert log.sweep(99, 10) == 0


def test_what_the_hold_wrote_is_looked_at_when_it_is_due() -> None:
    log = Log([None])
    for number in range(1000):
        log.write([None] * 10)
        if number == 500:
            log.write([None, 30, None])
    assert log.sweep(30, 10) == 1
    assert log.sweep(31, 10) == 3
    assert not log.overdue(31)
    assert log.sweep(99, 10) == 0
    assert log.lives._stretches == []


def test_rows_that_an_old_answer_lacked_are_looked_at_later() -> None:
    log = Log([None, 20, 20, 20, None])
    log.sweep(10, 10, hidden=3)
    log.sweep(15, 10)
    log.sweep(21, 10)
    assert not log.overdue(21)


def test_stretches_are_few() -> None:
    log = Log([1_000_000] * 5_000)
    log.sweep(10, 300)
    looked_at = len(log.lives._stretches)
    assert 5_000 / ROWS_MAX <= looked_at <= 2 * 5_000 / ROWS_MAX + 1
    for _ in range(500):
        log.write([None] * 9 + [1_000_000])
    assert 5_000 / ROWS_MAX <= len(log.lives._stretches) - looked_at <= 2 * 5_000 / ROWS_MAX + 1


def test_what_is_noted_is_not_joined_over_rows_that_nobody_counted() -> None:
    log = Log([None])
    log.write([1_000_000])
    log.write([None] * (ROWS_MAX // 2))
    log.write([1_000_000])
    assert len(log.lives._stretches) == 1
    log.write([None] * ROWS_MAX)
    log.write([20])
    log.write([None])
    assert len(log.lives._stretches) == 2
    log.sweep(21, 10)
    # What lay between is gone: how many rows there are up to the next nobody has counted.
    log.write([1_000_000])
    assert len(log.lives._stretches) == 2


def test_a_look_that_another_round_has_overtaken_hides_nothing() -> None:
    log = Log([None] * 10 + [30, None])
    log.write([20, None])
    lives, held = log.lives, (key(0), key(13))
    lives.begin()
    asked = lives.next(21, *held)
    assert asked is not None
    assert asked[0] == key(12)
    lives.looked(asked, [key(12)], more=False, due_ms=None)
    lives.looked(asked, [key(12)], more=False, due_ms=None)  # By the other one.
    assert lives.next(21, *held) == (key(0), key(12))


def test_what_the_floor_has_passed_is_forgotten() -> None:
    log = Log([1_000] * 10)
    log.sweep(10, 10)
    log.write([1_000] * 10)
    log.floor = 19
    assert log.sweep(20, 10) == 0
    assert [known.stop for known in log.lives._stretches] == [key(19) + b"\0"]
