"""``broker cursors`` against a whole broker, and the calls of both clients."""

from __future__ import annotations

import json

import pytest

from broker.client import (
    BadName,
    BadRequest,
    Client,
    CursorMoved,
    NotFound,
    SyncClient,
    TopicNotFound,
)
from broker.client.positions import before
from tests.kit.commands import Run
from tests.kit.served import ServedNode


def test_cursors_are_set_listed_shown_and_deleted(run: Run, node: ServedNode) -> None:
    with SyncClient(node.url) as client:
        client.create_topic("cursors/cli")
        client.publish("cursors/cli", ["a", "b", "c"])
        ids = [message.id for message in client.poll("cursors/cli")]
    topic = "cursors/cli"
    assert run("cursors", "list", topic) == (0, "", "")
    assert run("cursors", "set", topic, "m", "--after", ids[0].hex())[0] == 0
    assert run("cursors", "set", topic, "old", "--oldest")[2] == "old is at the beginning\n"
    assert run("cursors", "set", topic, "new", "--newest")[0] == 0
    told = json.loads(run("cursors", "list", topic, "--json")[1])
    assert [(each["name"], each["behind"]) for each in told] == [("m", 2), ("new", 0), ("old", 3)]
    heads, *rows = run("cursors", "list", topic)[1].splitlines()
    assert heads.split()[:2] == ["NAME", "BEHIND"]
    assert [row.split()[:2] for row in rows] == [["m", "2"], ["new", "0"], ["old", "3"]]
    assert run("cursors", "set", topic, "m", "--since", ids[2].hex())[0] == 0
    shown = run("cursors", "show", topic, "m")[1]
    assert before(ids[2]).hex() in shown
    assert json.loads(run("cursors", "show", topic, "m", "--json")[1])["behind"] == 1
    assert run("cursors", "delete", topic, "m", stdin=b"y\n")[0] == 0
    assert json.loads(run("cursors", "delete", topic, "m", "--yes", "--json")[1]) == {
        "deleted": False
    }
    assert "there is no cursor m" in run("cursors", "delete", topic, "m", "--yes")[2]
    code, _, told = run("cursors", "show", topic, "m")
    assert (code, "has no cursor m" in told) == (1, True)


@pytest.mark.parametrize("words", [[], ["--oldest", "--newest"], ["--since", "1h", "--oldest"]])
def test_a_cursor_is_set_to_one_place(run: Run, words: list[str]) -> None:
    code, _, told = run("cursors", "set", "cursors/any", "m", *words)
    assert (code, "Give one of" in told) == (2, True)


async def test_both_clients_keep_cursors(node: ServedNode) -> None:
    async with Client(node.url) as client:
        await client.create_topic("cursors/client")
        await client.publish("cursors/client", ["a", "b"])
        first, _ = await client.poll("cursors/client")
        made = await client.cursors.put("cursors/client", "m", None, expected=None)
        assert (made.after, made.generation, made.lag) == (None, 1, None)
        moved = await client.cursors.put(
            "cursors/client", "m", first.id.hex(), expected=made.version, data="mine"
        )
        with pytest.raises(CursorMoved) as lost:
            await client.cursors.put("cursors/client", "m", None, expected=made.version)
        assert lost.value.cursor is not None
        assert lost.value.cursor["version"] == moved.version
        found = await client.cursors.get("cursors/client", "m")
        assert (found.after, found.data, found.version) == (first.id, "mine", moved.version)
        assert found.lag is not None
        assert (found.lag.messages, found.lag.lost) == (1, 0)
        with pytest.raises(TopicNotFound):
            await client.cursors.get("cursors/none", "m")
        with pytest.raises(BadName):
            await client.cursors.get("cursors/client", "a/b")
        with pytest.raises(BadRequest):
            await client.cursors.put("cursors/client", "m", "12", expected=None)
    with SyncClient(node.url) as blocking:
        for number in range(99):  # With ``m`` as many as a topic may have; a page has 100.
            blocking.cursors.put("cursors/client", f"c{number:03}", None, expected=None)
        names = [each.name for each in blocking.cursors.list("cursors/client")]
        assert (len(names), names) == (100, sorted(names))
        assert blocking.cursors.delete("cursors/client", "m")
        with pytest.raises(NotFound):
            blocking.cursors.get("cursors/client", "m")
