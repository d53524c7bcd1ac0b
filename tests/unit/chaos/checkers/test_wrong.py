"""Small histories, at least one for each violation."""

import pytest

from chaos.checkers import NAMES, Promises
from tests.kit.story import Story, rid, snapshot

PROMISES = Promises(early_ms=100, late_ms=100, stored_late_ms=100, unavailable_ms=1000)


def three(*left: tuple[int, str]) -> Story:
    """One publisher's three messages; only the given ones are there at the end."""
    story = Story()
    for row, payload in ((1, "a"), (2, "b"), (3, "c")):
        story.publish(row, payload, process="p")
    return story.final(*left)


def shown_before_refusal() -> Story:
    """Two rollbacks in flight may explain a row, and are refused one after the other."""
    story = Story().publish(1, "a", pointer=7)
    asked = {"pointer": 7, "first": rid(1), "last": rid(1)}
    one, two = story.begin("rollback", asked), story.begin("rollback", asked)
    story.read([(1, "a", -7)])
    for ending in (one, two):
        ending.fail("refused")
    return story


def short_lived(ms: int = 1000, **options) -> Story:
    story = Story(PROMISES).done("create", {"ttl_s": ms // 1000})
    return story.publish(1, "a", **options).publish(2, "b").read([(1, "a"), (2, "b")])


def pipelined(first: int, second: int) -> Story:
    story = Story()
    one = story.publishing("a", process="p/0", publisher="p", number=1)
    two = story.publishing("b", process="p/1", publisher="p", number=2)
    story.answer(two, second).answer(one, first)
    return story.final(*sorted([(first, "a"), (second, "b")]))


def fault(story: Story, kind: str = "kill"):
    return story.begin("fault", {"kind": kind}, "nemesis", "")


def row_of(ms: int) -> int:
    """Return the first row of a millisecond."""
    return ms << 16


def _two_of_a_row() -> Story:
    story = Story().row_put(1).offer(1)
    story.offering(2)
    story.offering(3, "two")
    return story.row_final()


SEES_ALL = snapshot(100)

WRONG = {
    "lost_tail": [three((1, "a"), (2, "b"))],
    "lost_prefix": [three((2, "b"), (3, "c"))],
    "lost_middle": [three((1, "a"), (3, "c"))],
    "duplicated": [
        Story().publish(1, "a").final((1, "a"), (2, "a")),
        Story().publish(None, "a").read([(1, "a")]).final((2, "a")),
    ],
    "phantom": [Story().publish(1, "a").final((1, "a"), (2, "b"))],
    "refused_but_stored": [
        Story().publish(1, "a", outcome="fail").final((1, "a")),
        Story().publish(1, "a", outcome="fail").read([(1, "a")]).publish(1, "a", process="again"),
    ],
    "old_rows": [
        Story().publish(1, "a").done("delete", {}).read([(1, "a")], generation=2),
        Story()
        .publish(1, "a", generation=0)
        .done("delete", {"generation": 0})
        .done("create", {"generation": 0})
        .read([(1, "a")], generation=0),
    ],
    "reordered": [
        Story().publish(2, "a").publish(1, "b").final((1, "b"), (2, "a")),
        Story().publish(None, "a").publish(None, "b").final((1, "b"), (2, "a")),
        Story().publish(None, "a").publish(None, "b", outcome="unknown").final((1, "b"), (2, "a")),
    ],
    "publisher_order": [pipelined(2, 1)],
    "torn": [
        Story().publish(1, "a", "b", outcome="unknown").final((1, "a")),
        Story().publish(1, "a", "b", outcome="unknown").final((1, "b"), (2, "a")),
        Story()
        .publish(None, "a", "b", outcome="unknown")
        .publish(None, "c", outcome="unknown")
        .final((1, "a"), (2, "c"), (3, "b")),
        Story().publish(1, "a").final((2, "a")),
        Story().publish(None, "a", "b").final((1, "b")),
        *(
            Story(PROMISES)
            .publish(1, "a", "b", ttl_ms=1000, outcome="unknown")
            .at(800)
            .final(shown)
            for shown in ((1, "a"), (2, "b"))
        ),
    ],
    "id_reused": [
        Story().publish(1, "a").read([(1, "a")]).publish(2, "b").final((1, "b")),
        Story().publish(1, "a").publish(1, "b").final((1, "a")),
    ],
    "other_attributes": [
        Story().publish(1, "a").read([(1, "a", None, "key b'k'")]).final((1, "a")),
        Story().publish(1, "a").final((1, "a", None, "key None")),
    ],
    "two_answers": [Story().publish(1, "a", key="k").publish(2, "a", key="k").final((1, "a"))],
    "two_epochs": [Story().publish(1, "a", epoch=2).publish(2, "b").final((1, "a"), (2, "b"))],
    "written_after_delete": [
        Story().done("delete", {}).publish(1, "a").final((1, "a")),
        Story().done("delete", {"generation": 0}).publish(1, "a", generation=0),
        Story()
        .done("delete", {"generation": 0})
        .done("create", {"generation": 0}, outcome="fail")
        .publish(1, "a", generation=0),
    ],
    "stored_late": [
        Story(PROMISES).publish(None, "a", until_ms=500).final((row_of(601), "a")),
        # A request of unknown outcome has a deadline too.
        Story(PROMISES)
        .publish(None, "a", until_ms=500, outcome="unknown")
        .final((row_of(601), "a")),
    ],
    "changed_read": [
        Story().publish(1, "a").publish(2, "b").read([(1, "a"), (2, "b")]).read([(2, "b")]),
        Story().publish(1, "a").publish(2, "b").read([(2, "b")]).final((1, "a"), (2, "b")),
        Story().publish(1, "a").read([(1, "a")]).read([], seen=1),
        Story()
        .publish(1, "a")
        .publish(2, "b")
        .publish(3, "c")
        .read([(1, "a"), (2, "b"), (3, "c")])
        .read([(3, "c"), (1, "a")], reverse=True, view="all", through=rid(3)),
    ],
    "divergence": [
        Story().publish(1, "a").publish(2, "b").final((1, "a"), (2, "b")).final((1, "a"), node="n"),
        Story().publish(1, "a").final((1, "a")).final((1, "a", -7), node="n"),
        Story()
        .publish(1, "a")
        .publish(2, "b")
        .read([(1, "a"), (2, "b")], node="one")
        .read([(2, "b")], node="two"),
        Story()
        .publish(1, "a")
        .final((1, "a"), snapshot=SEES_ALL)
        .final(node="n", snapshot=SEES_ALL),
    ],
    "skipped": [
        Story()
        .publish(1, "a")
        .publish(2, "b")
        .publish(3, "c")
        .read([(1, "a")], cursor="c")
        .read([(3, "c")], cursor="c", after=2)
        .final((1, "a"), (2, "b"), (3, "c")),
        Story()
        .publish(1, "a")
        .publish(2, "b")
        .read([(1, "a"), (2, "b")])
        .read([(2, "b")], cursor="c"),
        Story()
        .publish(1, "a")
        .publish(2, "b")
        .read([(2, "b")], cursor="c")
        .final((1, "a"), (2, "b")),
    ],
    "backward": [
        Story().publish(1, "a").read([(1, "a")], cursor="c").read([(1, "a")], cursor="c"),
        Story().publish(1, "a").read([(1, "a")], cursor="c", after=1),
    ],
    "time_addressing": [
        Story().publish(0x20000, "a").read([(0x20000, "a")], time=3),
        Story()
        .publish(0x20000, "a")
        .publish(0x30000, "b")
        .read([(0x20000, "a"), (0x30000, "b")])
        .read([(0x30000, "b")], time=2),
    ],
    "misordered": [Story().publish(1, "a").publish(2, "b").read([(2, "b"), (1, "a")])],
    "out_of_range": [
        Story().publish(1, "a").read([(1, "a")], after=1),
        Story().publish(2, "a").read([(2, "a")], through=rid(1)),
        Story().publish(1, "a").publish(2, "b").read([(1, "a"), (2, "b")], limit=1),
    ],
    "unreadable": [
        Story().publish(1, "a").done("read", {}, outcome="fail", process="final"),
        Story().publish(1, "a").done("read", {}, outcome="unknown", process="final@n"),
        Story().cas(None, "a").done("get", {"key": "k"}, outcome="fail", process="final", topic=""),
    ],
    "expired_early": [
        short_lived().at(800).read([(2, "b")]),
        short_lived(10_000, ttl_ms=1000).at(500).read([(2, "b")]),
    ],
    "expired_late": [
        short_lived().at(1200).read([(2, "b")]),
        short_lived().done("update", {"ttl_s": 9}, outcome="fail").at(1200).read([(2, "b")]),
        short_lived(10_000, ttl_ms=1000).at(1200).read([(1, "a"), (2, "b")]),
    ],
    "floor_lowered": [
        Story()
        .publish(1, "a")
        .done("floor", {"floor": rid(5)}, {"floor": rid(5)})
        .final((1, "a"), floor=0)
    ],
    "rolled_back": [
        Story().publish(1, "a", pointer=7).rollback(7, 1, 1).final((1, "a", 7)),
        Story().publish(1, "a", pointer=7).rollback(7, 1, 1).read([(1, "a")], snapshot=SEES_ALL),
    ],
    "phantom_rollback": [
        Story().publish(1, "a", pointer=7).final((1, "a", -7)),
        Story().publish(1, "a", pointer=7).rollback(7, 1, 1, outcome="fail").final((1, "a", -7)),
        shown_before_refusal(),
    ],
    "payloads_changed": [
        Story()
        .done("payloads", {"number": 3}, {"rows": [[rid(1), "a"]]})
        .done("payloads", {"number": 3}, {"rows": [[rid(1), "a"], [rid(2), "b"]]})
    ],
    "payloads_lost": [
        Story()
        .done("store", {"number": 3, "payloads": ["a"]}, {"last": rid(1)})
        .done("payloads", {"number": 3}, {"rows": []}),
        Story()
        .done("payloads", {"number": 3}, {"rows": []})
        .done("store", {"number": 3, "payloads": ["a"]}, {"last": rid(1)}),
    ],
    "dirty_read": [
        Story().publish(1, "a", pointer=7).read([(1, "a")], snapshot=snapshot(5)),
        Story().publish(1, "a", pointer=7).read([(1, "a")], snapshot=snapshot(9, invalids=[7])),
        Story().publish(1, "a", pointer=7).read([(1, "a")], snapshot=snapshot(9, in_progress=[7])),
        # It stands after a message of an open transaction.
        Story()
        .publish(1, "a", pointer=7)
        .publish(2, "b")
        .read([(2, "b")], snapshot=snapshot(9, in_progress=[7]))
        .final((1, "a"), (2, "b")),
    ],
    "lost_visible": [
        Story()
        .publish(1, "a", pointer=7)
        .publish(2, "b")
        .read([(2, "b")], snapshot=snapshot(9))
        .final((1, "a"), (2, "b")),
        Story().publish(1, "a").final((1, "a")).final(snapshot=snapshot(9)),
    ],
    "half_transaction": [
        Story()
        .publish(1, "a", pointer=7)
        .publish(1, "b", pointer=7, topic="ns:u")
        .decide("commit", 7)
        .final((1, "a", 7))
        .final((1, "b", -7), topic="ns:u"),
        Story().publish(1, "a", pointer=7).decide("commit", 7).final(),
        Story().publish(1, "a", pointer=7).decide("abort", 7).final((1, "a", 7)),
        Story().publish(1, "a", pointer=7).decide("abort", 7).read([(1, "a")], snapshot=SEES_ALL),
        Story()
        .publish(1, "a", pointer=7)
        .publish(1, "b", pointer=7, topic="ns:u")
        .decide("commit", 7)
        .final((1, "a"))
        .final((1, "a"), snapshot=SEES_ALL)
        .final((1, "b"), topic="ns:u")
        .final(snapshot=SEES_ALL, topic="ns:u"),
    ],
    "pointer_reused": [
        Story()
        .publish(1, "a")
        .done("begin", {}, {"pointer": 7}, topic="")
        .decide("commit", 7)
        .done("begin", {}, {"pointer": 7}, topic="")
        .final((1, "a"))
    ],
    "unavailable": [
        Story(PROMISES)
        .publish(None, "a", outcome="fail")
        .at(900)
        .publish(None, "b", outcome="fail")
        .at(1700)
        .publish(None, "c"),
    ],
    "same_instance_id": [
        Story()
        .publish(1, "a")
        .done("fault", {"kind": "twin"}, {"twins": [7]}, topic="")
        .final((1, "a"))
    ],
    "lost_update": [
        Story().cas(None, "a").cas("a", "b").cas("a", "c"),
        Story().cas(None, "a").cas("a", "b", "unknown").cas("a", "c").get("b"),
        Story().cas(None, "a").cas("a", "b").get("a", version=4).get("b", version=4),
    ],
    "stale_value": [
        Story().cas(None, "a").cas("a", "b").get("a"),
        Story().cas(None, "a").get(None),
        Story().cas(None, "a").cas("a", "b").cas(None, "c"),
    ],
    "phantom_value": [
        Story().get("a"),
        Story().cas(None, "a", "fail").get("a"),
    ],
    "row_lost": [
        Story().row_put(1).row_final(),
        Story().row_put(1).offer(1, done=False).row_final(),
    ],
    "row_in_flight": [_two_of_a_row()],
    "row_order": [
        Story().row_put(1).row_put(2).offer(2).offer(1).row_final(),
        Story().row_put(1).row_put(2).offer(1, done=False).offer(2),
    ],
}


def _left_broken() -> Story:
    """A fault without a promise lasts long, and the topic does not come back after it."""
    story = Story(PROMISES).publish(None, "a")
    ending = fault(story)
    asked = story.at(5000).publishing("b")
    story.at(6000)
    ending.ok({"happened": True})
    return story.at(9000).answer(asked, outcome="unknown").publish(None, "c")


def _never_answered() -> Story:
    story = Story(PROMISES)
    story.publishing("a")
    return story.at(1500).get(None)


def _lost_after_a_delete() -> Story:
    story = Story().publish(1, "a", generation=0)
    for outcome in ("unknown", "fail", "ok"):
        story.done("delete", {"generation": 1}, outcome=outcome)
    story.done("create", {"generation": 0}).publish(2, "b", generation=0)
    return story.final(generation=2)


WRONG["lost_tail"].append(_lost_after_a_delete())
WRONG["unavailable"] += [_left_broken(), _never_answered()]
CASES = [
    pytest.param(name, story, id=f"{name}-{number}")
    for name, stories in WRONG.items()
    for number, story in enumerate(stories)
]


@pytest.mark.parametrize(("name", "story"), CASES)
def test_a_wrong_history_is_found_by_name(name, story):
    assert name in story.found(), story.verdict().violations


def test_every_violation_has_a_wrong_history():
    assert set(WRONG) == NAMES


@pytest.mark.parametrize(("name", "story"), CASES)
def test_a_violation_names_its_line(name, story):
    found = [one for one in story.verdict().violations if one.name == name]
    assert found[0].detail
    assert -1 <= found[0].place < len(story.history.events)


def test_a_history_without_acknowledgements_or_an_end_is_unknown():
    assert not Story().publish(1, "a").verdict().is_known
    assert not Story().final((1, "a")).verdict().is_known
    one_of_two = Story().publish(1, "a").publish(1, "b", topic="ns:u").final((1, "a"))
    assert not one_of_two.verdict().is_known
    of_unsure_life = Story().done("delete", {"generation": 0}, outcome="unknown")
    assert not of_unsure_life.publish(1, "a", generation=0).verdict().is_known
    stored = Story().publish(1, "a", topic="ns:u").final((1, "a"), topic="ns:u")
    stored.done("store", {"payloads": ["b"], "number": 5}, {"last": rid(1)})
    assert stored.verdict().is_known
    assert not stored.done("reference", {"number": 5}).verdict().is_known


def test_registers_are_known_if_a_final_read_shows_each_changed_one():
    assert not Story().cas(None, "a").get("a").verdict().is_known
    assert not Story().get(None, process="final@n").verdict().is_known
    assert Story().cas(None, "a").get("a", process="final@n").verdict().is_valid


def test_a_rowlog_is_known_if_the_run_waited_for_it():
    done = Story().row_put(1).offer(1)
    assert not done.verdict().is_known
    assert done.row_final().verdict().is_valid
    assert "rowlog l" not in str(done.verdict().violations)


def test_of_many_violations_some_are_kept_and_all_are_counted():
    story = Story().publish(1, "a")
    for _ in range(300):
        story.read([(1, "a")], after=1)
    verdict = story.verdict()
    assert len(verdict.violations) == 200
    assert verdict.counts["found.out_of_range"] == 300
