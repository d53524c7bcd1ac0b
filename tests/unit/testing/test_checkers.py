"""Each checker against a small history that is right, and against ones that are wrong in one way."""

import re
from pathlib import Path

import pytest

from broker.testing import checkers
from broker.testing.history import Call, History


class Story:
    """Writes a history, one whole call at a time unless told otherwise."""

    def __init__(self) -> None:
        self.history = History(lambda: len(self.history.events))
        self.names = 0

    def begin(self, op, asked, process=None):
        self.names += 1
        asked = {"generation": 1, **asked}
        return self.history.invoke(process or f"{op} {self.names}", op, "ns:t", asked)

    def publish(self, row, *payloads, last=None, epoch=1, outcome="ok", **asked):
        process = asked.pop("process", None)
        ending = self.begin(
            "publish", {"payloads": payloads, "pointer": None, "key": None, **asked}, process
        )
        self.end(ending, outcome, row, last or row, epoch)
        return self

    @staticmethod
    def end(ending, outcome="ok", row=None, last=None, epoch=1):
        ending.node, ending.epoch = "n", epoch
        if outcome == "ok":
            ending.ok({"last": rid(last or row)}, rid(row))
        elif outcome == "fail":
            ending.fail("refused")
        else:
            ending.unknown("who knows")

    def read(self, rows, process="reader", *, after=0, through=99, seen=None, floor=0, **asked):
        """Read ``rows``: (id, payload) or (id, payload, pointer)."""
        asked = {"after": rid(after), "through": rid(through), **asked}
        shown = [[rid(row[0]), row[1], row[2] if len(row) > 2 else None] for row in rows]
        last = rows[-1][0] if rows else after
        told = {
            "rows": shown,
            "seen": rid(last if seen is None else seen),
            "floor": rid(floor),
            "pointer": rid(max([last, *(row[0] for row in rows)])),
        }
        self.begin("read", asked, process).ok(told)
        return self

    def final(self, *rows, **options):
        return self.read(rows, "final", **options)

    def done(self, op, asked, told=None, outcome="ok"):
        ending = self.begin(op, asked)
        if outcome == "ok":
            ending.ok(told or {})
        elif outcome == "fail":
            ending.fail("refused")
        else:
            ending.unknown("who knows")
        return self

    def rollback(self, pointer, first, last, outcome="ok"):
        asked = {"pointer": pointer, "first": rid(first), "last": rid(last)}
        return self.done("rollback", asked, {"rows": 1}, outcome)

    def found(self) -> set[str]:
        return checkers.check(self.history.calls()).names


def rid(number: int) -> str:
    return f"{number:020x}"


def test_a_right_history_is_valid():
    story = Story()
    story.publish(1, "a").publish(2, "b", "c", last=3, epoch=2).publish(4, "no", outcome="fail")
    story.publish(5, "d", outcome="unknown", pointer=7, epoch=2).publish(6, "e", epoch=2, pointer=8)
    story.rollback(8, 6, 6)
    story.read([(1, "a"), (2, "b")]).read([(3, "c"), (2, "b")], reverse=True, through=3, seen=2)
    story.read([(1, "a")], cursor="c1").read([(2, "b"), (3, "c")], cursor="c1", after=1)
    story.done("floor", {"floor": rid(2)}, {"floor": rid(2)})
    story.final((2, "b"), (3, "c"), (5, "d", 7), (6, "e", -8), floor=2)
    verdict = checkers.check(story.history.calls())
    assert verdict.is_valid, verdict.violations


def test_a_history_that_shows_too_little_is_unknown():
    assert not checkers.check(Story().publish(1, "a").history.calls()).is_known
    assert not checkers.check(Story().final((1, "a")).history.calls()).is_known


WRONG = {
    "lost_tail": Story().publish(1, "a", process="p").publish(2, "b", process="p").final((1, "a")),
    "lost_prefix": Story()
    .publish(1, "a", process="p")
    .publish(2, "b", process="p")
    .final((2, "b")),
    "lost_middle": Story()
    .publish(1, "a", process="p")
    .publish(2, "b", process="p")
    .publish(3, "c", process="p")
    .final((1, "a"), (3, "c")),
    "duplicated": Story().publish(1, "a").final((1, "a"), (2, "a")),
    "phantom": Story().publish(1, "a", outcome="fail").final((1, "a")),
    "reordered": Story().publish(2, "a").publish(1, "b").final((1, "b"), (2, "a")),
    "id_reused": Story().publish(1, "a").read([(1, "a")]).final((1, "b")),
    "torn": Story().publish(1, "a", "b", outcome="unknown").final((1, "a")),
    "two_epochs": Story().publish(1, "a", epoch=2).publish(2, "b").final((1, "a"), (2, "b")),
    "two_answers": Story().publish(1, "a", key="k").publish(2, "a", key="k").final((1, "a")),
    "written_after_delete": Story().done("delete", {}).publish(1, "a").final((1, "a")),
    "changed_read": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([(2, "b")])
    .final((1, "a"), (2, "b")),
    "backward_cursor": Story()
    .publish(1, "a")
    .read([(1, "a")], cursor="c")
    .read([(1, "a")], cursor="c")
    .final((1, "a")),
    "skipped": Story()
    .publish(1, "a")
    .publish(2, "b")
    .publish(3, "c")
    .read([(1, "a")], cursor="c")
    .read([(3, "c")], cursor="c", after=2)
    .final((1, "a"), (2, "b"), (3, "c")),
    "misordered": Story().publish(1, "a").publish(2, "b").read([(2, "b"), (1, "a")]),
    "out_of_range": Story().publish(1, "a").read([(1, "a")], after=1),
    "floor_lowered": Story()
    .publish(1, "a")
    .done("floor", {"floor": rid(5)}, {"floor": rid(5)})
    .final((1, "a"), floor=0),
    "rolled_back_read": Story().publish(1, "a", pointer=7).rollback(7, 1, 1).final((1, "a", 7)),
    "phantom_rollback": Story().publish(1, "a", pointer=7).final((1, "a", -7)),
    "payloads_changed": Story()
    .done("payloads", {"number": 3}, {"rows": [[rid(1), "a"]]})
    .done("payloads", {"number": 3}, {"rows": [[rid(1), "a"], [rid(2), "b"]]}),
    "payloads_lost": Story()
    .done("store", {"number": 3, "payloads": ["a"]}, {"last": rid(1)})
    .done("payloads", {"number": 3}, {"rows": []}),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_history_is_found_by_name(name):
    assert name in WRONG[name].found()


def test_a_log_that_cannot_be_read_at_the_end_is_found():
    story = Story().publish(1, "a")
    story.begin("read", {"after": rid(0), "through": rid(9)}, "final").fail("no answer")
    assert story.found() == {"unreadable"}


def test_every_violation_has_a_wrong_history():
    sources = {checker.__globals__["__file__"] for checker in checkers.ALL}
    text = "".join(Path(source).read_text() for source in sources)
    names = set(re.findall(r'Violation\(\s*"([a-z_]+)"', text))
    assert len(names) > 15
    assert names <= {*WRONG, "unreadable"}


RIGHT = {
    "an unknown publish may be there or not": Story()
    .publish(1, "a", outcome="unknown")
    .publish(2, "b")
    .final((2, "b")),
    "a publish under way may be read before it is acknowledged": Story().publish(1, "z"),
    "rows below a floor may be gone": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([(1, "a"), (2, "b")])
    .done("floor", {"floor": rid(2)}, {"floor": rid(2)})
    .final((2, "b"), floor=2),
    "an unknown rollback may count or not": Story()
    .publish(1, "a", pointer=7)
    .rollback(7, 1, 1, outcome="unknown")
    .read([(1, "a", 7)])
    .final((1, "a", -7)),
    "a key is answered again with the same ids": Story()
    .publish(1, "a", key="k")
    .publish(2, "b")
    .final((1, "a"), (2, "b")),
    "a later generation owes nothing of an earlier one": Story()
    .publish(1, "a")
    .done("delete", {})
    .publish(2, "b", generation=2)
    .final((2, "b"), generation=2),
    "a reader of a bounded range vouches for that range alone": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([], through=1, after=1, reverse=True, seen=1)
    .read([(2, "b")], after=1)
    .final((1, "a"), (2, "b")),
}


@pytest.mark.parametrize("what", sorted(RIGHT))
def test_a_right_history_is_not_blamed(what):
    assert RIGHT[what].found() == set()


def test_concurrent_publishes_may_come_in_any_order():
    story = Story()
    first = story.begin("publish", {"payloads": ["a"], "pointer": None, "key": None}, "p")
    second = story.begin("publish", {"payloads": ["b"], "pointer": None, "key": None}, "q")
    story.end(second, row=2, epoch=2)
    story.end(first, row=1, epoch=1)
    story.final((1, "a"), (2, "b"))
    assert story.found() == set()


def test_topics_are_judged_apart():
    story = Story().publish(1, "a").final((1, "a"))
    other = story.history.invoke("x", "publish", "ns:other", {**asked(), "payloads": ["b"]})
    story.end(other, row=1)
    assert story.found() == set()


def asked():
    return {"pointer": None, "key": None, "generation": 1}


def test_a_call_without_an_end_is_unknown():
    story = Story()
    story.begin("publish", {"payloads": ["a"], "pointer": None, "key": None})
    [call] = story.history.calls()
    assert isinstance(call, Call)
    assert (call.outcome, call.ended, call.is_ok) == ("unknown", None, False)
