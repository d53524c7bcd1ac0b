from pathlib import Path
from typing import Any

import pytest

from chaos import plots
from chaos.history import History


def told() -> History:
    now_s = 0.0
    history = History(lambda: int(now_s * 1e9))
    fault: Any = None
    for number in range(200):
        now_s = number / 10
        ending = history.invoke("p", "publish", "default:a", {"payloads": [str(number)]})
        if number == 50:
            fault = history.invoke("nemesis kill", "fault", "", {"kind": "kill"})
        if number == 90:
            fault.ok({"happened": True})
        now_s += 0.05
        ending.node, ending.epoch = f"http://node-{number // 100}", 1
        if number % 10 == 3:
            ending.fail("no leader")
        else:
            ending.ok({"last": ""}, "")
    return history


def test_faults_are_shaded_while_they_last() -> None:
    history = told()
    end_ns = history.events[-1].time_ns
    assert plots.shades_of(history.calls(), 0, end_ns) == [("kill", 5.0, 9.0)]


def test_writes_are_counted_by_second_and_outcome() -> None:
    points = plots.points_of(told().calls(), 0)
    assert plots.by_second(points, "ok", 20) == [9] * 20
    assert plots.by_second(points, "fail", 20) == [1] * 20
    assert plots.percentiles(points, 50, 21)[20] is None
    assert [round(value or 0) for value in plots.percentiles(points, 99, 20)] == [50] * 20


def test_leads_have_the_acknowledging_node_at_each_time() -> None:
    leads = plots.leads_of(told().calls(), 0)
    assert [node for _, node in leads["default:a"]] == ["http://node-0"] * 90 + [
        "http://node-1"
    ] * 90


@pytest.mark.slow
def test_the_plots_are_drawn_and_name_the_faults(tmp_path: Path) -> None:
    made = plots.draw(told().events, tmp_path)
    assert [file.name for file in made] == ["rate.svg", "leaders.svg"]
    assert "kill" in made[0].read_text()
    assert "http://node-1" in made[1].read_text()
    assert plots.draw([], tmp_path) == []


def test_close_names_stand_on_different_lines() -> None:
    begins = (0.0, 0.0, 5.0, 50.0, 100.0)
    shades = [plots.Shade("kill", begin_s, begin_s + 10) for begin_s in begins]
    assert plots.rows_of(shades) == [0, 1, 2, 0, 0]
    assert plots.rows_of([]) == []
