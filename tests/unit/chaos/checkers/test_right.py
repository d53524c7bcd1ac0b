"""Small correct histories that look wrong at first."""

import pytest

from broker.model import Snapshot
from chaos.checkers import Promises
from chaos.history import Operation, calls_of, snapshot_value
from tests.kit.story import Story, rid, snapshot

PROMISES = Promises(early_ms=100, late_ms=100, stored_late_ms=100, unavailable_ms=1000)


def of_everything() -> Story:
    story = Story(PROMISES).done("create", {"ttl_s": 3600})
    story.publish(1, "a").publish(2, "b", "c", last=3, epoch=2).publish(4, "no", outcome="fail")
    story.publish(5, "d", outcome="unknown", pointer=7, epoch=2).publish(6, "e", epoch=2, pointer=8)
    story.rollback(8, 6, 6)
    story.read([(1, "a"), (2, "b")]).read([(3, "c"), (2, "b")], reverse=True, through=rid(3))
    story.read([(1, "a")], cursor="c1").read([(2, "b"), (3, "c")], cursor="c1", after=1)
    story.done("floor", {"floor": rid(2)}, {"floor": rid(2)})
    return story.final((2, "b"), (3, "c"), (5, "d", 7), (6, "e", -8), floor=2)


def while_broken() -> Story:
    story = Story(PROMISES).publish(None, "a")
    ending = story.begin("fault", {"kind": "kill"}, "nemesis", "")
    asked = story.at(100).publishing("b")
    story.at(5000).answer(asked, outcome="unknown")
    ending.ok({"happened": True})
    return story.at(5900).publish(None, "c").final((1, "a"), (2, "c"))


def pipelined(first: int, second: int, publishers=("p", "p")) -> Story:
    story = Story()
    one = story.publishing("a", process="p/0", publisher=publishers[0], number=1)
    two = story.publishing(
        "b", process="p/1", publisher=publishers[1], number=1 + (len(set(publishers)) == 1)
    )
    story.answer(two, second).answer(one, first)
    return story.final(*sorted([(first, "a"), (second, "b")]))


def short_lived(promises: Promises = PROMISES) -> Story:
    return Story(promises).done("create", {"ttl_s": 1}).publish(1, "a").at(500).publish(2, "b")


def told_after_others(ms: int, promises: Promises = PROMISES) -> Story:
    """A session reads a live message, but reports it at its end, after other reads passed it over."""
    story = short_lived(promises)
    session = story.begin("read", {"cursor": "session"})
    story.at(ms).read([(2, "b")], cursor="late")
    session.ok({"rows": [[rid(1), "a", None]]})
    return story.final((2, "b"))


def created_meanwhile() -> Story:
    story = Story().publish(1, "a").done("delete", {"generation": 1})
    publishing = story.publishing("b", generation=0)
    story.done("create", {"generation": 0}, {"generation": 2}).done("delete", {"generation": 2})
    return story.answer(publishing, 2)


def refused_and_unknown() -> Story:
    """Of two rollbacks of a row in flight, one is refused, and the other may have been done."""
    story = Story().publish(1, "a", pointer=7)
    asked = {"pointer": 7, "first": rid(1), "last": rid(1)}
    one, two = story.begin("rollback", asked), story.begin("rollback", asked)
    story.read([(1, "a", -7)])
    one.fail("refused")
    two.unknown("no answer")
    return story.final((1, "a", -7))


def halted() -> Story:
    """A processor dies with a message in flight; another does this message and the next."""
    story = Story(PROMISES).row_put(1).row_put(2).row_put(None, outcome="unknown")
    story.offering(1)
    story.at(100).done("row-halt", {"processor": "one"}, topic="")
    story.at(200).offering(1, "two").ok({"done": False})
    story.offering(1, "two").ok({"done": True})
    story.at(300).offering(2, "two").ok({"done": True})
    return story.row_final()


def asked_again() -> Story:
    """A publish of unknown outcome is repeated with its key, after another publish."""
    story = Story().publish(1, "a", key="k", process="p", outcome="unknown")
    story.publish(2, "b", process="p")
    return story.publish(None, "a", key="k", process="p")


def stored() -> Story:
    """Stored messages appear at their reference; a poll does not show the reference itself."""
    story = Story().publish(1, "a")
    story.done("store", {"number": 7, "payloads": ["s", "t"]}, {"last": rid(2)})
    story.done("reference", {"number": 7})
    story.done("payloads", {"number": 7}, {"rows": [[rid(1), "s"], [rid(2), "t"]]})
    shown = [[rid(2) + rid(1), "s", None], [rid(2) + rid(2), "t", None]]
    for process in ("one", "final", "final@n"):
        rows = [[rid(1) + rid(0), "a", None], *shown]
        story.done("read", {"view": "messages"}, {"rows": rows}, process=process)
    story.done("read", {"view": "messages", "after": rid(2) + rid(1)}, {"rows": shown[1:]})
    return story.read([(1, "a"), (2, None)])


def in_transactions() -> Story:
    story = Story().publish(1, "a").publish(2, "b", pointer=7).publish(3, "c", pointer=8)
    story.publish(4, "d", pointer=9).publish(5, "e")
    story.decide("commit", 7).rollback(8, 3, 3).decide("abort", 8).decide("invalidate", 9)
    story.read([(1, "a"), (2, "b"), (5, "e")], snapshot=snapshot(9, invalids=[9]))
    story.read([(1, "a"), (2, "b")], snapshot=snapshot(9, in_progress=[9]))
    story.read([(1, "a"), (2, "b"), (4, "d"), (5, "e")], snapshot=snapshot(7, own=9))
    story.final((1, "a"), (2, "b", 7), (3, "c", -8), (4, "d", 9), (5, "e"))
    return story.final((1, "a"), (2, "b"), (5, "e"), snapshot=snapshot(9, invalids=[9]))


RIGHT = {
    "of everything": of_everything(),
    "an unknown publish may be there or not": Story()
    .publish(1, "a", outcome="unknown")
    .publish(2, "b", outcome="unknown")
    .publish(3, "c")
    .final((2, "b"), (3, "c")),
    "rows below a floor may be gone": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([(1, "a"), (2, "b")])
    .done("floor", {"floor": rid(2)}, {"floor": rid(2)})
    .read([(2, "b")])
    .final((2, "b"), floor=2),
    "a floor may cut a request": Story()
    .publish(1, "a", "b", last=2)
    .done("floor", {"floor": rid(2)}, {"floor": rid(2)})
    .final((2, "b"), floor=2),
    "an unknown rollback may count or not": Story()
    .publish(1, "a", pointer=7)
    .rollback(7, 1, 1, outcome="unknown")
    .read([(1, "a", 7)])
    .final((1, "a", -7)),
    "a key is answered again with the same ids": Story()
    .publish(1, "a", key="k")
    .publish(2, "b", epoch=2)
    .publish(1, "a", key="k", replayed=True)
    .final((1, "a"), (2, "b")),
    "an unknown publish is repeated later": asked_again().final((1, "a"), (2, "b")),
    "calls in flight of a dead processor do not count": halted(),
    "an unknown publish is stored at its repetition": asked_again().final((2, "b"), (3, "a")),
    "a later generation has no messages of an earlier one": Story()
    .publish(1, "a")
    .done("delete", {})
    .publish(2, "b", generation=2)
    .final((2, "b"), generation=2),
    "an unknown generation follows from deletes": Story()
    .publish(1, "a", generation=0)
    .done("delete", {"generation": 0})
    .done("create", {"generation": 0})
    .publish(2, "b", generation=0)
    .final((2, "b"), generation=0),
    "during a delete of unknown outcome the checkers are unsure": Story()
    .publish(1, "a", generation=0)
    .done("delete", {"generation": 0}, outcome="unknown")
    .publish(2, "b", generation=0)
    .read([(1, "a")], generation=0)
    .done("create", {"generation": 0})
    .publish(3, "c", generation=0)
    .final((3, "c"), generation=0),
    "a delete of unknown outcome is repeated": Story()
    .publish(1, "a", generation=0)
    .done("delete", {"generation": 1}, outcome="unknown")
    .done("delete", {"generation": 1}, outcome="unknown")
    .done("delete", {"generation": 1})
    .done("create", {"generation": 0})
    .publish(2, "b", generation=0)
    .final((2, "b"), generation=2),
    "a create of unknown outcome happens after the delete of a later one": Story()
    .done("create", {"generation": 0}, {"generation": 1})
    .done("delete", {"generation": 1})
    .done("create", {"generation": 0}, outcome="unknown")
    .done("create", {"generation": 0}, {"generation": 2})
    .done("delete", {"generation": 2})
    .publish(1, "a", generation=0)
    .final((1, "a"), generation=3),
    "a publish is in flight while a topic is created and deleted": created_meanwhile(),
    "a row is shown as rolled back before an answer": refused_and_unknown(),
    "a refused update ends no message of a topic without a ttl": Story(PROMISES)
    .done("create", {"generation": 0}, {"generation": 1})
    .done("update", {"ttl_s": 1}, outcome="fail")
    .publish(1, "a")
    .at(5000)
    .final((1, "a")),
    "a message without a ttl outlives an update that is not answered": Story(PROMISES)
    .done("create", {"generation": 0}, {"generation": 1})
    .publish(1, "a")
    .done("update", {"ttl_s": 1}, outcome="unknown")
    .at(5000)
    .final((1, "a")),
    "a read covers only its own range": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([], through=rid(1), after=1, reverse=True, seen=1)
    .read([(2, "b")], after=1)
    .final((1, "a"), (2, "b")),
    "a reverse read from an id that the node does not have yet": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([(1, "a"), (2, "b")])
    .read([(1, "a")], reverse=True, through=rid(9), node="behind")
    .final((1, "a"), (2, "b")),
    "a node may lag": Story()
    .publish(1, "a")
    .publish(2, "b")
    .read([(1, "a"), (2, "b")], node="one")
    .read([(1, "a")], node="two")
    .final((1, "a"), (2, "b"))
    .final((1, "a"), (2, "b"), node="two"),
    "a read by time": Story()
    .publish(0x20000, "a")
    .publish(0x30000, "b")
    .read([(0x20000, "a"), (0x30000, "b")])
    .read([(0x30000, "b")], time=3)
    .final((0x20000, "a"), (0x30000, "b")),
    "a concurrent publish may come first": pipelined(2, 1, ("p", "q")),
    "pipelined in order": pipelined(1, 2),
    "a message expires a moment earlier or later": short_lived()
    .read([(1, "a"), (2, "b")])
    .at(950)
    .read([(2, "b")])
    .at(1050)
    .read([(1, "a"), (2, "b")])
    .at(1200)
    .read([(2, "b")])
    .final((2, "b")),
    "all may have expired at the end": short_lived().at(3000).final(),
    "a message with a short life goes first": Story(PROMISES)
    .publish(1, "a", ttl_ms=1000)
    .publish(2, "b")
    .read([(1, "a"), (2, "b")])
    .at(1200)
    .read([(2, "b")])
    .final((2, "b")),
    "a message expires between two final reads": Story(PROMISES)
    .publish(1, "a", ttl_ms=1000)
    .publish(2, "b")
    .at(900)
    .final((1, "a"), (2, "b"))
    .at(1200)
    .final((2, "b"), node="n"),
    "a publish expires after the page of a final read that has its first parts": Story(PROMISES)
    .publish(1, "a", "b", ttl_ms=1000, last=2)
    .at(900)
    .final((1, "a")),
    "a publish expires for the node of the first page alone": Story(PROMISES)
    .publish(1, "a", "b", ttl_ms=1000, last=2)
    .at(900)
    .final((2, "b")),
    "a stream may report an early read late": short_lived()
    .at(9000)
    .done("read", {}, {"rows": [[rid(1), "a", None]]})
    .final(),
    "a session shows a message that had expired for later reads": told_after_others(1200),
    "the same without a promise about expiry": told_after_others(600, Promises(early_ms=None)),
    "clocks may differ a little from the deadline": Story(PROMISES)
    .publish(None, "a", until_ms=500)
    .final((600 << 16, "a")),
    "a later attempt has its own deadline": Story(PROMISES)
    .publish(None, "a", key="k", until_ms=500, outcome="unknown")
    .publish(None, "a", key="k", until_ms=900)
    .final((950 << 16, "a")),
    "without a deadline a message may be stored at any time": Story(PROMISES)
    .publish(None, "a")
    .final((9000 << 16, "a")),
    "silence during a fault without a promise": while_broken(),
    "silence without requests": Story(PROMISES)
    .publish(1, "a")
    .at(9000)
    .publish(2, "b")
    .final((1, "a"), (2, "b")),
    "stored payloads": stored(),
    "transactions": in_transactions(),
    "a register": Story()
    .get(None)
    .cas(None, "a")
    .cas("a", "b", "unknown")
    .get("a", version=1)
    .get("b", version=2)
    .cas("b", "c")
    .cas("b", "d", "fail")
    .get("c", process="final@n")
    .publish(1, "a")
    .final((1, "a")),
    "a later value shows that an unknown change was done": Story()
    .cas(None, "a", "unknown")
    .cas("a", "b", "unknown")
    .cas("b", "c")
    .get("c", process="final@n")
    .publish(1, "a")
    .final((1, "a")),
}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_history_is_valid(name):
    verdict = RIGHT[name].verdict()
    assert verdict.is_valid, verdict


def test_concurrent_publishes_may_come_in_any_order_and_epoch():
    story = Story()
    first, second = story.publishing("a", process="p"), story.publishing("b", process="q")
    story.answer(second, 2, epoch=2).answer(first, 1, epoch=1)
    assert story.final((1, "a"), (2, "b")).verdict().is_valid


def test_a_row_of_a_session_that_other_reads_must_have_shown_is_found():
    assert told_after_others(600).found() >= {"changed_read", "skipped"}


def test_a_publish_under_way_at_the_end_is_unknown():
    story = Story().publish(1, "a")
    story.publishing("b")
    [_, call] = story.history.calls()
    assert isinstance(call, Operation)
    assert (call.outcome, call.ended, call.is_ok) == ("unknown", None, False)
    assert story.final((1, "a"), (2, "b")).verdict().is_valid


def test_topics_are_judged_apart():
    story = Story().publish(1, "a").publish(1, "a", topic="ns:u")
    assert story.final((1, "a")).final((1, "a"), topic="ns:u").verdict().is_valid


def test_a_verdict_counts_operations_and_silences():
    counts = of_everything().verdict().counts
    assert counts["acknowledged"] == 4
    assert (counts["refused"], counts["unknown"], counts["leader_changes"]) == (1, 1, 1)
    assert (counts["rollback.ok"], counts["rows_read"]) == (1, 11)
    counts = while_broken().verdict().counts
    assert counts["faults.kill"] == 1
    assert counts["longest_silent_ms"] == 5800
    assert counts["longest_unavailable_ms"] == 900


def test_a_history_has_a_snapshot_as_a_value():
    value = snapshot_value(
        Snapshot(transaction_id=9, read_pointer=7, invalids=[3], in_progress=[5])
    )
    assert value == snapshot(7, invalids=[3], in_progress=[5], own=9)


def test_calls_are_judged_in_the_order_of_their_lines():
    story = of_everything()
    calls = calls_of(story.history.events)
    assert [call.invoked for call in calls] == sorted(call.invoked for call in calls)
