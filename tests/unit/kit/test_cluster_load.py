"""How the load of a cluster evaluates its history, without a cluster."""

import re

import pytest

from tests.kit.load import ClusterLoad

URLS = ["http://127.0.0.1:1"]


def test_failed_reads_are_recorded_unless_the_load_ended_them() -> None:
    load = ClusterLoad(URLS, ["default/t"])
    ask = load.history.invoke
    ask("waiting-0-t", "read", "default:t", {}).ok({"rows": []}, "")
    ask("waiting-0-t", "read", "default:t", {}).unknown("CancelledError")
    ask("plain-0", "read", "default:t", {}).fail("NoLeader: lost")
    assert load.unread == []
    ask("streaming-2-t", "read", "default:t", {}).fail("NoLeader: lost")
    assert load.unread == ["streaming-2-t: NoLeader: lost"]
    assert load.answered == 1


async def test_a_wait_that_takes_too_long_lists_the_calls_in_flight() -> None:
    load = ClusterLoad(URLS, ["default/t"], state=lambda: "all nodes serve")
    load.history.invoke("single-0-t", "publish", "default:t", {"payloads": ["a"]})
    load.history.invoke("single-1-t", "publish", "default:t", {"payloads": ["b"]}).fail("refused")
    with pytest.raises(AssertionError) as raised:
        await load.acknowledged(1, deadline_s=0.01)
    message = str(raised.value)
    assert "no 1 more were acknowledged in 0.01 s" in message
    assert "'fail': 1" in message
    assert "last errors ['refused']" in message
    assert re.search(
        r"in flight \[\"single-0-t: publish \{'payloads': \['a'\]\} for [\d.]+ s\"\]", message
    )
    assert message.endswith("all nodes serve")
