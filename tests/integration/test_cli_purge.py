"""``broker purge`` against a whole broker, and the same through both clients."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from broker.client import BadRequest, Client, SyncClient
from broker.clock import SystemClock
from tests.kit.commands import Run
from tests.kit.served import ServedNode

NOW = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)


def test_a_purge_asks_first_and_reports_the_time_of_the_oldest_message_left(
    run: Run, node: ServedNode
) -> None:
    with SyncClient(node.url) as client:
        client.create_topic("purge/cli")
        client.publish("purge/cli", ["a", "b"])
        code, _, asked = run("purge", "purge/cli", "--before", "now", stdin=b"n\n")
        assert (code, "purge/cli" in asked) == (130, True)
        assert len(client.poll("purge/cli")) == 2
        code, out, _ = run("purge", "purge/cli", "--before", "1h", "--json")
        assert (code, out) == (2, "")
        assert run("purge", "purge/cli", "--before", "1h", "--json", "--yes")[0] == 0
        assert len(client.poll("purge/cli")) == 2
        code, out, told = run("purge", "purge/cli", "--before", "now", "--yes")
        assert (code, out) == (0, "")
        assert "purge/cli now begins at" in told
        assert client.poll("purge/cli") == []
        client.publish("purge/cli", "c")
        assert [message.payload for message in client.poll("purge/cli")] == [b"c"]
    code, out, _ = run("purge", "purge/cli", "--before", "1h", "--json", "--yes")
    assert json.loads(out)["topic"] == "purge/cli"
    shown = json.loads(run("topics", "show", "purge/cli", "--json")[1])
    assert shown["properties"]["purged_ms"] == str(json.loads(out)["purged_ms"])
    assert run("topics", "set", "purge/cli", "color=red", "--any-property")[0] == 0
    code, _, told = run("topics", "set", "purge/cli", "purged_ms=0", "--any-property")
    assert (code, "broker purge" in told) == (2, True), told
    again = json.loads(run("topics", "show", "purge/cli", "--json")[1])
    assert again["properties"]["purged_ms"] == shown["properties"]["purged_ms"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--before", "0" * 40], "takes no message id"),
        (["--before", "soon"], "'soon' is neither"),
        ([], "--before"),
    ],
)
def test_a_purge_that_names_no_moment_is_wrong_usage(run: Run, words: list[str], says: str) -> None:
    code, _, told = run("purge", "purge/cli", "--yes", *words)
    assert (code, says in told) == (2, True), told


def test_a_moment_in_the_future_is_refused(run: Run, node: ServedNode) -> None:
    with SyncClient(node.url) as client:
        client.create_topic("purge/future")
        client.publish("purge/future", "kept")
        code, _, told = run("purge", "purge/future", "--before", "2999-01-01", "--yes")
        assert (code, "future" in told) == (1, True)
        assert len(client.poll("purge/future")) == 1


async def test_both_clients_purge(node: ServedNode) -> None:
    async with Client(node.url) as client:
        await client.create_topic("purge/client")
        await client.publish("purge/client", "old")
        (message,) = await client.poll("purge/client")
        hour_ago = NOW - timedelta(hours=1)
        assert await client.purge("purge/client", hour_ago) == int(hour_ago.timestamp() * 1000)
        assert len(await client.poll("purge/client")) == 1
        assert await client.purge("purge/client", "now") == message.timestamp_ms + 1
        assert await client.poll("purge/client") == []
        properties = dict((await client.topic("purge/client")).properties)
        await client.set_topic("purge/client", properties)  # The shown properties may be sent back.
        with pytest.raises(BadRequest, match="a purge does"):
            await client.set_topic("purge/client", {"purged_ms": "0"})
        with pytest.raises(BadRequest, match="future"):
            await client.purge("purge/client", NOW + timedelta(hours=1))
    with SyncClient(node.url) as blocking:
        assert blocking.purge("purge/client", 0) == message.timestamp_ms + 1
