import random

import pytest

from broker.errors import OutcomeUnknown, StorageCorrupt, StorageFull, Unavailable
from broker.model import log_key
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage.entry import Shared, entries_of, stub_of
from broker.storage.head import ChangeVerdict, Head, PageState
from broker.storage.resolve import Resolver, Tokens, epoch_of
from broker.storage.table import HEAD, Cell, NotWritten, Space, WriteUnknown
from broker.testing.virtual_time import VirtualClock, simulate

OLD = Head(5, "me", b"old" * 4, log_key(1, 0))
NEW = OLD._replace(token=b"new" * 4, pointer=log_key(2, 0))
LATER = NEW._replace(epoch=6, token=b"oth" * 4)
MINE = entries_of(5, [log_key(2, 0)], [b"mine"])[0]
THEIRS = entries_of(6, [log_key(2, 0)], [b"theirs"])[0]
SAME_EPOCH = entries_of(5, [log_key(2, 0)], [b"another"])[0]


class Scripted:
    """A table with scripted answers. It repeats the last one."""

    is_alone = keeps_order = False

    def __init__(self, changes, gets):
        self.changes, self.gets = list(changes), list(gets)
        self.calls = []

    @staticmethod
    def _next(answers):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def change(self, _space, row, expected, puts, deletes=(), *, clear=False):
        self.calls.append(("change", row, expected, dict(puts), tuple(deletes), clear))
        return self._next(self.changes)

    async def get(self, _space, _row, columns):
        self.calls.append(("get", *columns))
        return self._next(self.gets)


def shown(head, entry=None):
    cells = {} if head is None else {HEAD: Cell(heads.encode(head))}
    if entry is not None:
        cells[entry.column] = Cell(entries.encode(entry))
    return cells


def append(changes, gets=()):
    """Return the verdict or the error of an append, and its calls of the table."""
    table = Scripted(changes, gets)

    async def run(loop):
        resolver = Resolver(table, VirtualClock(loop), call_s=2.0)
        cells = {MINE.column: entries.encode(MINE)}
        return await resolver.append(Space.MESSAGES, b"row", OLD, NEW, cells)

    try:
        return simulate(run), table.calls
    except Exception as error:  # noqa: BLE001 - Any error is a result here.
        return error, table.calls


NO_ANSWER, NOT_SENT = WriteUnknown("lost"), NotWritten("refused")


@pytest.mark.parametrize("doubt", [False, NO_ANSWER])
@pytest.mark.parametrize(
    ("gets", "verdict"),
    [
        ([shown(NEW, MINE)], ChangeVerdict.APPLIED),
        ([shown(LATER, MINE)], ChangeVerdict.LOST),
        ([shown(LATER, stub_of(MINE))], ChangeVerdict.LOST),
        ([shown(LATER)], ChangeVerdict.NEVER),
        ([shown(LATER, THEIRS)], ChangeVerdict.NEVER),
        ([shown(LATER._replace(state=PageState.GONE))], ChangeVerdict.UNKNOWN),
        ([shown(NEW._replace(token=b"oth" * 4), SAME_EPOCH)], ChangeVerdict.UNKNOWN),
        (
            [shown(None), shown(OLD._replace(token=b"x" * 12)), shown(NEW, MINE)],
            ChangeVerdict.APPLIED,
        ),
        ([NO_ANSWER, NOT_SENT, Unavailable("busy"), shown(NEW, MINE)], ChangeVerdict.APPLIED),
        ([shown(None)], ChangeVerdict.UNKNOWN),
        ([NO_ANSWER], ChangeVerdict.UNKNOWN),
    ],
)
def test_the_verdict_of_a_read_after_a_doubtful_append(doubt, gets, verdict):
    assert append([doubt], gets)[0] is verdict


def test_an_append_answered_with_true_is_applied():
    verdict, calls = append([True])
    assert (verdict, len(calls)) == (ChangeVerdict.APPLIED, 1)


def test_an_unapplied_change_is_repeated_byte_for_byte():
    verdict, calls = append([NO_ANSWER, False, NOT_SENT, True], [shown(OLD)])
    changes = [call for call in calls if call[0] == "change"]
    assert (verdict, len(changes)) == (ChangeVerdict.APPLIED, 4)
    assert all(call == changes[0] for call in changes)


def test_a_change_that_is_never_applied_is_unknown_at_the_deadline():
    assert append([NO_ANSWER], [shown(OLD)])[0] is ChangeVerdict.UNKNOWN


@pytest.mark.parametrize("refusal", [NOT_SENT, Unavailable("busy")])
def test_a_refusal_of_the_first_try_is_certain(refusal):
    error, calls = append([refusal])
    assert isinstance(error, Unavailable)
    assert len(calls) == 1


@pytest.mark.parametrize("refusal", [NOT_SENT, Unavailable("busy")])
def test_a_refusal_after_an_unanswered_try_is_not_certain(refusal):
    assert append([NO_ANSWER, refusal], [shown(OLD), shown(NEW, MINE)])[0] is ChangeVerdict.APPLIED
    assert append([NO_ANSWER, refusal], [shown(OLD)])[0] is ChangeVerdict.UNKNOWN


@pytest.mark.parametrize("error", [StorageFull("full"), StorageCorrupt("bad")])
def test_a_full_or_corrupt_storage_is_final(error):
    assert append([error])[0] is error


def swap(changes, gets=(), expected=b"old", **more):
    table = Scripted(changes, gets)

    async def run(loop):
        resolver = Resolver(table, VirtualClock(loop), call_s=2.0)
        return await resolver.swap(Space.MESSAGES, b"row", expected, b"new", **more)

    try:
        return simulate(run), table.calls
    except Exception as error:  # noqa: BLE001 - Any error is a result here.
        return error, table.calls


@pytest.mark.parametrize(
    ("changes", "gets", "expected", "outcome"),
    [
        ([True], [], b"old", True),
        ([False], [{HEAD: Cell(b"new")}], b"old", True),
        ([False], [{HEAD: Cell(b"other")}], b"old", False),
        ([False], [{}], b"old", False),
        ([False, True], [{}], None, True),
        ([NO_ANSWER, True], [NO_ANSWER, {HEAD: Cell(b"old")}], b"old", True),
    ],
)
def test_the_outcome_of_a_swap(changes, gets, expected, outcome):
    assert swap(changes, gets, expected)[0] is outcome


def test_a_swap_without_a_known_outcome_raises():
    assert isinstance(swap([NO_ANSWER], [NO_ANSWER])[0], OutcomeUnknown)
    assert isinstance(swap([NOT_SENT])[0], Unavailable)


def test_a_swap_passes_puts_deletes_and_clear_to_the_table():
    _, calls = swap([True], puts={b"ex": b"1"}, deletes=[b"e1"], clear=True)
    assert calls == [("change", b"row", b"old", {HEAD: b"new", b"ex": b"1"}, (b"e1",), True)]


def test_reads_are_repeated_until_the_deadline():
    table = Scripted([], [NO_ANSWER, NOT_SENT, {HEAD: Cell(b"v")}])
    found = simulate(lambda loop: Resolver(table, VirtualClock(loop)).head(Space.MESSAGES, b"r"))
    assert found == Cell(b"v")
    table = Scripted([], [NO_ANSWER])
    with pytest.raises(Unavailable):
        simulate(lambda loop: Resolver(table, VirtualClock(loop)).head(Space.MESSAGES, b"r"))


def test_tokens_rise_within_a_hold_and_differ_between_holds():
    one, other = Tokens(b"a" * 8), Tokens(b"b" * 8)
    mine = [one.fresh() for _ in range(300)]
    assert sorted(set(mine)) == mine
    assert all(one.is_mine(token) and not other.is_mine(token) for token in mine)


def test_an_entry_shows_the_epoch_of_its_writer():
    mine = entries.encode(MINE)
    tied = entries_of(5, [log_key(2, 0)], [random.Random(1).randbytes(9)], Shared(lifetime_ms=1))[0]
    assert epoch_of(mine, mine, 5) == 5
    assert epoch_of(entries.encode(THEIRS), mine, 5) == 6
    assert epoch_of(entries.encode(SAME_EPOCH), mine, 5) is None
    assert epoch_of(entries.encode(stub_of(tied)), entries.encode(tied), 5) == 5
