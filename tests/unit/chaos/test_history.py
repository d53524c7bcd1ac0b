import json

import pytest

from chaos.history import History, calls_of, load, of


@pytest.fixture
def history():
    times = iter(range(100))
    return History(lambda: next(times))


def test_lines_have_the_documented_fields(history, tmp_path):
    ending = history.invoke("p1", "publish", "ns:t", {"payloads": ["a"]})
    ending.node, ending.epoch = "n1", 4
    ending.ok({"last": "02"}, "01")
    path = tmp_path / "history.jsonl"
    history.save(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    fields = {"process", "type", "op", "topic", "value", "id", "node", "epoch", "time_ns"}
    assert all(set(line) == fields for line in lines)
    assert [line["type"] for line in lines] == ["invoke", "ok"]
    assert (lines[1]["id"], lines[1]["node"], lines[1]["epoch"]) == ("01", "n1", 4)
    assert load(path) == history.events


def test_calls_pair_by_process(history):
    first = history.invoke("p1", "publish", "ns:t", {"n": 1})
    second = history.invoke("p2", "read", "ns:t", {"n": 2})
    second.fail("no")
    first.unknown("died")
    third = history.invoke("p1", "publish", "ns:t", {"n": 3})
    del third
    one, two, three = calls_of(history.events)
    assert (one.asked, one.outcome, one.invoked, one.ended) == ({"n": 1}, "unknown", 0, 3)
    assert (two.asked, two.outcome, two.told) == ({"n": 2}, "fail", {"why": "no"})
    assert (three.ended, three.told) == (None, {})
    assert of([one, two, three], "read") == [two]


def test_a_call_ends_once(history):
    ending = history.invoke("p1", "publish", "ns:t", {})
    ending.ok({})
    with pytest.raises(AssertionError):
        ending.fail("again")
