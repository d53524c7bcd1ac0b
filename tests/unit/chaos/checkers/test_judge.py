"""The work of the judge is in proportion to the history, and its verdict can be written down."""

import json

import pytest

from chaos.checkers import Judge
from tests.kit.story import Story
from tests.unit.chaos.checkers.honest import HonestWorld


def test_a_verdict_can_be_written_down():
    told = json.loads(json.dumps(Story().publish(2, "a").publish(1, "b").verdict().to_json()))
    assert told["valid"] is False
    assert [one["name"] for one in told["violations"]] == ["reordered"]
    assert told["counts"]["acknowledged"] == 2
    assert Story().verdict().to_json()["valid"] == "unknown"


def steps_of(world: HonestWorld) -> int:
    judge = Judge()
    judge.verdict(world.history.calls())
    return judge.steps


def rows_and_lines(world: HonestWorld) -> int:
    rows = (len(event.value.get("rows", ())) for event in world.events if event.type == "ok")
    return len(world.events) + sum(rows)


@pytest.mark.slow
def test_the_work_grows_as_the_history_does():
    """The number of table operations for each line and each shown row is constant."""
    short, long = HonestWorld(1, 150), HonestWorld(1, 750)
    each = [steps_of(world) / rows_and_lines(world) for world in (short, long)]
    assert each[1] < 1.25 * each[0]
