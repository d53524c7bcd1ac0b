"""A history in segments is judged like the whole, in bounded memory, with work in proportion to its length."""

import gc
import json
import tracemalloc
from collections.abc import Sequence

import pytest

from chaos.checkers import DiskTables, Judge, Verdict, Violation, judge_segments, total
from chaos.history import Event
from tests.kit.story import Story
from tests.unit.chaos.checkers.honest import HonestWorld
from tests.unit.chaos.checkers.test_right import RIGHT
from tests.unit.chaos.checkers.test_wrong import WRONG


def cut(events: Sequence[Event], length: int) -> list[Sequence[Event]]:
    return [events[start : start + length] for start in range(0, len(events), length)]


def judged(story: Story, length: int, tables: DiskTables | None = None) -> list[Verdict]:
    return judge_segments(cut(story.history.events, length), story.promises, tables)


@pytest.mark.parametrize("name", sorted(WRONG))
@pytest.mark.parametrize("length", [1, 3])
def test_a_wrong_history_is_found_in_segments_of_any_length(name, length):
    for story in WRONG[name]:
        whole = judged(story, length, DiskTables())[-1]
        assert whole.names == story.found()


@pytest.mark.parametrize("name", sorted(RIGHT))
@pytest.mark.parametrize("length", [1, 4])
def test_a_right_history_is_valid_in_segments_of_any_length(name, length):
    whole = judged(RIGHT[name], length, DiskTables())[-1]
    assert whole.is_valid, whole
    counts = RIGHT[name].verdict().counts
    assert {kind: n for kind, n in whole.counts.items() if n} == {
        kind: n for kind, n in counts.items() if n
    }


def test_each_segment_has_a_verdict_of_its_own():
    story = Story().publish(2, "a").publish(1, "b").publish(3, "c")
    first, second, third, last, end, whole = judged(story.final((1, "b"), (2, "a"), (3, "c")), 2)
    assert first.is_valid
    assert second.names == {"reordered"}
    assert third.is_valid
    assert last.is_valid
    assert end.is_known
    assert whole.names == {"reordered"}


def test_an_acknowledged_message_of_an_early_segment_is_missed_at_the_end():
    story = Story().publish(1, "a").publish(2, "b").publish(3, "c").publish(4, "d")
    *segments, end, _ = judged(story.final((1, "a"), (2, "b"), (4, "d")), 2)
    assert all(segment.is_valid for segment in segments)
    [lost] = end.violations
    assert lost.name == "lost_tail"
    assert "segment=2" in lost.detail


def test_an_unknown_publish_may_be_shown_in_a_later_segment():
    story = Story().publish(1, "a", outcome="unknown").read([(1, "a")]).publish(2, "b")
    assert judged(story.final((1, "a"), (2, "b")), 2)[-1].is_valid


def test_a_call_may_end_in_a_later_segment():
    story = Story()
    early = story.publishing("a", process="p")
    story.publish(2, "b").publish(3, "c")
    story.answer(early, 1).final((1, "a"), (2, "b"), (3, "c"))
    assert judged(story, 2)[-1].is_valid


def test_a_history_may_be_taken_piece_by_piece():
    story, judge = Story(), Judge()
    early = story.publishing("a")
    for act in (lambda: story.publish(2, "b"), lambda: story.answer(early, 1)):
        act()
        for event in story.history.taken():
            judge.add(event)
        judge.cut()
    story.final((1, "a"), (2, "b"))
    for event in story.history.taken():
        judge.add(event)
    assert judge.end().is_valid
    assert story.history.events == []


def test_verdicts_add_up():
    one = Verdict((Violation("torn", "x"),), True, {"acknowledged": 3, "longest_silent_ms": 5})
    other = Verdict((), True, {"acknowledged": 4, "longest_silent_ms": 4})
    whole = total([one, other])
    assert whole.names == {"torn"}
    assert whole.counts == {"acknowledged": 7, "longest_silent_ms": 5}
    assert not whole.is_valid
    assert total([other, other]).is_valid
    assert not total([other, other._replace(is_known=False)]).is_known
    assert not total([]).is_known


def test_a_verdict_can_be_written_down():
    told = json.loads(json.dumps(Story().publish(2, "a").publish(1, "b").verdict().to_json()))
    assert told["valid"] is False
    assert [one["name"] for one in told["violations"]] == ["reordered"]
    assert told["counts"]["acknowledged"] == 2
    assert Story().verdict().to_json()["valid"] == "unknown"


def steps_of(world: HonestWorld, tables: DiskTables | None = None) -> int:
    judge = Judge(tables=tables)
    for event in world.events:
        judge.add(event)
    judge.end()
    return judge.steps


def rows_and_lines(world: HonestWorld) -> int:
    rows = (len(event.value.get("rows", ())) for event in world.events if event.type == "ok")
    return len(world.events) + sum(rows)


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True])
def test_the_work_grows_as_the_history_does(on_disk):
    """The number of table operations for each line and each shown row is constant."""
    short, long = HonestWorld(1, 150), HonestWorld(1, 750)
    each = [
        steps_of(world, DiskTables() if on_disk else None) / rows_and_lines(world)
        for world in (short, long)
    ]
    assert each[1] < 1.25 * each[0]


def many(segment: int, count: int = 100) -> list[Event]:
    """One segment of a long history: messages, and a reader that follows them."""
    story = Story()
    for number in range(segment * count + 1, (segment + 1) * count + 1):
        story.publish(number, f"m{number}", process="p", key=f"k{number}")
        story.read([(number, f"m{number}")], "r", after=number - 1, cursor="r", view="messages")
    return story.history.events


@pytest.mark.slow
def test_memory_does_not_grow_with_the_history():
    judge = Judge(tables=DiskTables(cache_kib_max=64))
    sizes = []
    tracemalloc.start()
    try:
        for segment in range(8):
            for event in many(segment):
                judge.add(event)
            judge.cut()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # The first segment creates the lasting objects. Later segments add almost no memory.
    assert sizes[-1] - sizes[1] < 20_000, sizes
