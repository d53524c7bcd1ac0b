"""An operator's commands show and control a cluster of real processes."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.client import SyncClient
from broker.local import LocalCluster, Member
from broker.testing.hbase_server import HBaseServer

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase"), pytest.mark.slow]

GUIDE = Path(__file__).parents[2] / "docs/guides/cluster.md"
DEADLINE_S = 60.0
GRACE_S = 15.0
"""``stop_grace_period`` of docker-compose.cluster.yml."""
TOPICS = [f"admin/topic-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """The shared nodes, once every node knows all others, so that the leaders do not change any more."""
    eventually(
        lambda: all(len(rows(node)) == 3 for node in shared_cluster.nodes),
        lambda: [asked(node, "status") for node in shared_cluster.nodes],
    )
    with SyncClient(shared_cluster.nodes[0].url) as client:
        for topic in TOPICS:
            client.create_topic(topic)
            client.publish(topic, b"first")
    return shared_cluster


def broker(node: Member, *words: str, code: int = 0) -> str:
    """Run a command as a process against one node; return its output, or its error."""
    done = ran(node, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def ran(node: Member, *words: str) -> subprocess.CompletedProcess[str]:
    assert node.url is not None
    return subprocess.run(
        [sys.executable, "-m", "broker.cli", *words],
        env={**os.environ, "BROKER_URL": node.url},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def asked(node: Member, *words: str) -> Any:
    return json.loads(broker(node, "cluster", *words, "--json"))


def rows(node: Member, *words: str) -> dict[str, Any]:
    """Return the status that a node gives, by URL."""
    return {row["url"]: row for row in asked(node, "status", *words)["nodes"]}


def publish_once(url: str, topic: str) -> None:
    """Publish, and ignore errors."""
    name = topic.partition("/")[2]
    request = urllib.request.Request(
        f"{url}/v1/namespaces/admin/topics/{name}/publish",
        data=b"last",
        headers={"Content-Type": "text/plain"},
    )
    with suppress(OSError):
        urllib.request.urlopen(request, timeout=DEADLINE_S).close()


def under_way(node: Member) -> float:
    """Return how many requests a node is answering."""
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=DEADLINE_S) as reply:
        told = re.search(
            r"^broker_requests_under_way\S* (\S+)", reply.read().decode(), re.MULTILINE
        )
    assert told is not None
    return float(told[1])


def eventually(check: Callable[[], object], state: Callable[[], object]) -> None:
    """Return once ``check()`` holds; after the deadline raise an error with ``state()``."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not check():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {state()}"
        pause.wait(0.2)


def leader_of(node: Member, topic: str) -> Any:
    (led,) = asked(node, "leaders", topic)
    return led


def test_every_node_reports_the_same_cluster(cluster: LocalCluster) -> None:
    led: list[dict[str, str]] = []
    for node in cluster.nodes:
        status = asked(node, "status", "--topics")
        assert {row["url"] for row in status["nodes"]} == {other.url for other in cluster.nodes}
        assert len({row["node"] for row in status["nodes"]}) == 3
        for row in status["nodes"]:
            assert (row["state"], row["problem"], row["drained"]) == ("serving", None, False)
            view = row["view"]
            assert view["zookeeper"]["contact"] == "connected"
            assert view["zookeeper"]["session"].startswith("0x")
            assert view["storage"]["calls"] > 0
            assert view["topics_led"] == len(view["topics"])
        led.append(
            {one["topic"]: row["url"] for row in status["nodes"] for one in row["view"]["topics"]}
        )
    assert led[0] == led[1] == led[2]
    assert set(led[0]) >= set(TOPICS)
    told = {one["topic"]: one["url"] for one in asked(cluster.nodes[1], "leaders", *TOPICS)}
    assert told == {topic: led[0][topic] for topic in TOPICS}
    table = broker(cluster.nodes[2], "cluster", "status").splitlines()
    assert len(table) == 4
    assert all(row.split()[2] == "serving" for row in table[1:])


def test_a_drained_node_leads_no_topic_and_goes_on_serving(cluster: LocalCluster) -> None:
    here, other = cluster.nodes[0], cluster.nodes[1]
    assert other.url is not None
    number = rows(here)[other.url]["node"]
    assert rows(here)[other.url]["view"]["topics_led"] > 0
    drained = ran(here, "cluster", "drain", other.url, "--wait")
    assert (drained.returncode, drained.stdout) == (0, "")
    assert drained.stderr.endswith(f"node {number} leads nothing\n")
    seen = rows(here)[other.url]
    assert (seen["state"], seen["view"]["topics_led"], seen["view"]["slots_led"]) == (
        "drained",
        0,
        0,
    )
    with SyncClient(other.url) as client:
        for topic in TOPICS:
            client.publish(topic, b"by the drained node")
            payloads = [message.payload for message in client.poll(topic)]
            assert payloads == [b"first", b"by the drained node"]
    assert rows(here)[other.url]["view"]["topics_led"] == 0

    other.kill()
    other.start()
    eventually(
        lambda: rows(here).get(other.url, {}).get("state") == "drained",
        lambda: asked(here, "status"),
    )
    assert rows(here)[other.url]["node"] == number, "a node that comes back has its number"

    assert asked(here, "undrain", str(number))["changed"] is True

    def led_again() -> bool:
        with SyncClient(here.url) as client:
            for topic in TOPICS:
                client.publish(topic, b"more")
        return bool(rows(here)[other.url]["view"]["topics_led"])

    eventually(led_again, lambda: asked(here, "status"))


def test_a_topic_is_pinned_to_several_nodes_and_unpinned(cluster: LocalCluster) -> None:
    topic = "admin/moving"
    here = cluster.nodes[0]
    with SyncClient(here.url) as client:
        client.create_topic(topic)
        client.publish(topic, b"0")
        by_slot = leader_of(here, topic)["url"]
        expected = [b"0"]
        epochs = [leader_of(here, topic)["epoch"]]
        for node in (*cluster.nodes[1:], here):
            assert node.url is not None
            broker(here, "cluster", "move", topic, node.url, "--wait")
            assert leader_of(here, topic)["url"] == node.url
            expected.append(b"%d" % len(expected))
            client.publish(topic, expected[-1])
            led = leader_of(cluster.nodes[2], topic)
            assert led["url"] == node.url
            epochs.append(led["epoch"])
        assert epochs == sorted(epochs)
        assert [message.payload for message in client.poll(topic)] == expected
    assert asked(here, "unpin", topic)["changed"] is True
    assert asked(here, "unpin", topic)["changed"] is False
    eventually(lambda: leader_of(here, topic)["url"] == by_slot, lambda: leader_of(here, topic))


def test_a_second_node_with_the_instance_id_of_a_live_node_does_not_start(
    cluster: LocalCluster,
) -> None:
    here, other = cluster.nodes[0], cluster.nodes[1]
    number = rows(here)[other.url]["node"]
    folder = other.folder
    done = subprocess.run(
        [
            *(sys.executable, "-m", "broker.cli", "serve", "--port", "0", "--advertised-url", ""),
            *("--config", str(folder / f"{other.name}.toml"), "--instance-id", str(number)),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    said = done.stderr.splitlines()[-1]
    assert said == (
        f"broker: Instance id {number} is held by the live node at {other.url}. "
        "This node does not start."
    )
    assert "Traceback" not in done.stderr
    assert rows(here)[other.url]["state"] == "serving", "the first node goes on"
    assert len(rows(here)) == 3


def test_the_commands_in_the_guide_work(cluster: LocalCluster) -> None:
    here = cluster.nodes[0]
    with SyncClient(here.url) as client:
        client.create_topic("audit/logins")
    assert sorted(row["node"] for row in rows(here).values()) == [0, 1, 2]
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    given = [words for words in lines if words[:2] == ["broker", "cluster"] and words[2] != "up"]
    assert {words[2] for words in given} == {"status", "move", "unpin", "drain", "undrain"}
    for words in given:
        if "--url" in words:
            words[words.index("--url") + 1] = str(here.url)
        broker(here, *words[1:])
    assert not any(row["drained"] for row in rows(here).values())
    assert asked(here, "status")["pins"] == 0


def test_missing_nodes_and_topics_are_reported(cluster: LocalCluster) -> None:
    here = cluster.nodes[0]
    said = broker(here, "cluster", "drain", "200", code=1)
    for node in cluster.nodes:
        assert f"at {node.url}" in said
    assert "broker topics create" in broker(
        here, "cluster", "move", "admin/none", str(here.url), code=1
    )
    assert "broker topics create" in broker(here, "cluster", "leaders", "admin/none", code=1)


@pytest.mark.nightly
def test_a_node_that_is_killed_is_silent_until_it_is_gone_and_another_leads(
    cluster: LocalCluster,
) -> None:
    here, other = cluster.nodes[0], cluster.nodes[2]
    other.kill()
    eventually(lambda: other.url not in rows(here), lambda: asked(here, "status"))
    with SyncClient(here.url) as client:
        for topic in TOPICS:
            client.publish(topic, b"without it")
    led = {one["url"] for one in asked(here, "leaders", *TOPICS)}
    assert other.url not in led
    other.start()
    eventually(
        lambda: rows(here).get(other.url, {}).get("state") == "serving",
        lambda: asked(here, "status"),
    )


@pytest.mark.nightly
def test_the_status_is_shown_while_zookeeper_and_storage_are_away(
    hbase_server: HBaseServer, cluster: LocalCluster
) -> None:
    here = cluster.nodes[0]

    def contacts() -> set[str]:
        return {row["view"]["zookeeper"]["contact"] for row in rows(here).values() if row["view"]}

    cluster.zookeepers[0].pause()
    hbase_server.kill()
    try:
        eventually(
            lambda: "connected" not in contacts(),
            lambda: asked(here, "status"),
        )
        status = asked(here, "status")
        assert status["contact"] != "connected"
        assert [row["state"] for row in status["nodes"]] == ["serving"] * 3
        assert [row["drained"] for row in status["nodes"]] == [None] * 3
        assert status["problem"] is not None
        shown = ran(here, "cluster", "status").stderr
        assert "has no contact with ZooKeeper" in shown
        assert "pins and drained nodes are not known" in shown
    finally:
        cluster.zookeepers[0].resume()
        hbase_server.start()
    eventually(
        lambda: contacts() == {"connected"} and asked(here, "status")["problem"] is None,
        lambda: asked(here, "status"),
    )
    with SyncClient(here.url) as client:
        for topic in TOPICS:
            client.publish(topic, b"all is well again")


@pytest.mark.nightly
def test_a_node_stops_within_a_containers_grace_period_without_zookeeper_and_storage(
    hbase_server: HBaseServer, cluster: LocalCluster
) -> None:
    one = cluster.nodes[1]
    cluster.zookeepers[0].pause()
    hbase_server.suspend()
    publishing = [
        threading.Thread(target=publish_once, args=(f"{one.url}", topic)) for topic in TOPICS
    ]
    try:
        for thread in publishing:
            thread.start()
        eventually(lambda: under_way(one) >= len(TOPICS), lambda: under_way(one))
        assert one.stop(grace_s=GRACE_S) == 0, one.log()
    finally:
        cluster.zookeepers[0].resume()
        # After so long a pause the region server ends itself.
        hbase_server.kill()
        hbase_server.start()
    for thread in publishing:
        thread.join()
    one.start()
    eventually(
        lambda: rows(one).get(one.url, {}).get("state") == "serving",
        lambda: asked(one, "status"),
    )
    with SyncClient(one.url) as client:
        for topic in TOPICS:
            client.publish(topic, b"it is back")
