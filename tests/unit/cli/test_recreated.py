"""Commands that keep a place in a file, and a topic that is deleted and created again in between."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from broker.model import PublishRequest, TopicId
from broker.topics.browse import BrowseQuery
from broker.transfer import exports, imports
from tests.kit.serving import Broker, Http
from tests.unit.cli.running import run

TOPIC = TopicId("default", "t")
OLD = [b"old %d" % number for number in range(6)]


async def recreate(broker: Broker) -> None:
    await broker.topics.delete(TOPIC)
    await broker.topics.create(TOPIC, {"ttl": "100000"})
    await broker.topics.publish(TOPIC, PublishRequest(None, [b"new"]))


async def test_a_page_of_browse_does_not_go_on_in_the_next_generation(
    broker: Broker, http: Http, capsys: pytest.CaptureFixture[str]
) -> None:
    await broker.topics.publish(TOPIC, PublishRequest(None, OLD))
    words = ("browse", "default/t", "--limit", "2", "--url", http.url)
    code, _, told = await asyncio.to_thread(run, capsys, *words)
    assert code == 0
    more = told.strip().removeprefix("more: ").split()
    assert more[1].endswith("@1")
    code, out, _ = await asyncio.to_thread(run, capsys, *words, *more, "--json")
    assert (code, len(json.loads(out)["messages"])) == (0, 2)
    await recreate(broker)
    code, out, told = await asyncio.to_thread(run, capsys, *words, *more)
    assert (code, out) == (1, "")
    assert "generation 1" in told
    assert "generation 2" in told


async def test_a_cursor_file_belongs_to_one_generation(
    broker: Broker, http: Http, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await broker.topics.publish(TOPIC, PublishRequest(None, OLD))
    words = ("tail", "default/t", "--no-follow", "--cursor", str(tmp_path / "c"), "--url", http.url)
    code, out, _ = await asyncio.to_thread(run, capsys, *words, "-n", "2")
    assert (code, out) == (0, "old 0\nold 1\n")
    await recreate(broker)
    code, out, told = await asyncio.to_thread(run, capsys, *words)
    assert (code, out, "generation 1, now 2" in told) == (1, "", True)


@pytest.mark.parametrize("way", ["export", "import"])
async def test_a_transfer_ends_with_its_generation(
    broker: Broker,
    http: Http,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """The topic is deleted and created again between two chunks."""
    await broker.topics.publish(TOPIC, PublishRequest(None, OLD))
    file = tmp_path / "m.jsonl"
    words = (str(file), "--url", http.url)
    if way == "import":
        assert (await asyncio.to_thread(run, capsys, "export", "default/t", *words))[0] == 0
    loop = asyncio.get_running_loop()
    steps: list[int] = []

    def between() -> None:
        steps.append(1)
        if len(steps) == 2:
            asyncio.run_coroutine_threadsafe(recreate(broker), loop).result(30)

    for module in (exports, imports):
        monkeypatch.setattr(module, "CHUNK_MESSAGES_MAX", 2)
    patched = exports.Export if way == "export" else imports.Import
    name = "_note" if way == "export" else "_publish"
    original = getattr(patched, name)

    def noting(self: object, *args: object, **given: object) -> None:
        original(self, *args, **given)
        between()

    monkeypatch.setattr(patched, name, noting)
    code, _, told = await asyncio.to_thread(run, capsys, way, "default/t", *words)
    assert code != 0
    assert "generation 1" in told
    assert "generation 2" in told
    page = (await broker.topics.browse(TOPIC, BrowseQuery())).entries
    assert [entry.payload for entry in page] == [b"new"]
