"""An interrupted export or import goes on only where it began, and only from files that it has written."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import click
import pytest

from broker.client import Client
from broker.model import PublishRequest, TopicId
from broker.transfer import exports, imports
from broker.transfer.formats import FORMATS
from tests.kit.serving import Broker, Http, listening
from tests.unit.cli.running import run

TOPIC = TopicId("default", "t")
PAYLOADS = [b"%d" % number for number in range(6)]
STATES = {"export": "m.jsonl.state", "import": "m.jsonl.default.t.import"}
Transfer = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def elsewhere() -> AsyncIterator[Http]:
    """Another broker, with a topic of the same name and generation."""
    other = Broker()
    async with listening(other) as http:
        await other.topics.create(TOPIC, {"ttl": "100000"})
        await other.topics.publish(TOPIC, PublishRequest(None, [b"other"]))
        yield http
    await other.close()


@pytest.fixture
async def transfer(
    broker: Broker,
    http: Http,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Transfer:
    """Exports or imports the topic ``t``; ``cut``: until its third chunk. Returns the exit code, and the text."""
    await broker.topics.publish(TOPIC, PublishRequest(None, PAYLOADS))
    for module in (exports, imports):
        monkeypatch.setattr(module, "CHUNK_MESSAGES_MAX", 2)
    steps = {"export": (exports.Export, "_note"), "import": (imports.Import, "_publish")}

    async def call(
        way: str, ending: str = "jsonl", *, url: str = http.url, cut: bool = False
    ) -> tuple[int, str]:
        file = tmp_path / f"m.{ending}"
        if way == "import" and not file.exists():
            file.write_text("".join(f'{{"value": "{number}"}}\n' for number in range(6)))
        where, name = steps[way]
        original, left = getattr(where, name), [3 if cut else 100]

        def step(*arguments: Any, **given: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise click.Abort
            return original(*arguments, **given)

        with monkeypatch.context() as patch:
            patch.setattr(where, name, step)
            words = (way, "default/t", str(file), "--url", url)
            code, _, told = await asyncio.to_thread(run, capsys, *words)
        return code, told

    return call


def cleared(folder: Path) -> None:
    """Remove the files of an unfinished transfer."""
    for each in folder.glob("m.*.*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()


@pytest.mark.parametrize("way", STATES)
async def test_a_transfer_goes_on_at_its_own_broker_alone(
    transfer: Transfer, elsewhere: Http, way: str
) -> None:
    assert (await transfer(way, cut=True))[0] == 130
    code, told = await transfer(way, url=elsewhere.url)
    assert (code, "give all of them once" in told) == (1, True), told
    assert (await transfer(way))[0] == 0


DAMAGES: list[tuple[str, dict[str, Any]]] = [
    ("export", {"stage": "else"}),
    ("export", {"position": "0"}),
    ("export", {"after": "12"}),
    ("export", {"through": None}),
    ("export", {"last": None}),
    ("export", {"messages": -1}),
    ("export", {"sha256": "ab"}),
    ("import", {"chunks": 4}),
    ("import", {"chunks": "1"}),
    ("import", {"producer": None}),
    ("import", {"messages": None}),
    *((way, {"brokers": "a"}) for way in STATES),
    *((way, {"generation": None}) for way in STATES),
]


@pytest.mark.parametrize(("way", "damage"), DAMAGES, ids=str)
async def test_a_damaged_state_is_named_with_the_way_out(
    transfer: Transfer, tmp_path: Path, way: str, damage: dict[str, Any]
) -> None:
    await transfer(way, cut=True)
    state = tmp_path / STATES[way]
    state.write_text(json.dumps({**json.loads(state.read_text()), **damage}))
    code, told = await transfer(way)
    assert (code, f"{state} is damaged" in told, "Remove m.jsonl" in told) == (1, True, True), told
    cleared(tmp_path)
    assert (await transfer(way))[0] == 0


async def test_a_state_without_its_values_is_damaged(transfer: Transfer, tmp_path: Path) -> None:
    for way, state in STATES.items():
        (tmp_path / state).write_text("{}")
        code, told = await transfer(way)
        assert (code, "is damaged" in told) == (1, True), told


@pytest.mark.parametrize("damage", ["chunk", "last", "all"])
async def test_a_damaged_part_of_parquet_is_named(
    transfer: Transfer, tmp_path: Path, damage: str
) -> None:
    pytest.importorskip("pyarrow")
    await transfer("export", "parquet", cut=True)
    part = tmp_path / "m.parquet.part"
    if damage == "all":
        shutil.rmtree(part)
    elif damage == "chunk":
        (part / "00000000").write_bytes(b"PAR1")
    else:
        (part / "00000000").unlink()
    code, told = await transfer("export", "parquet")
    assert (code, f"{part} was changed or removed" in told) == (1, True), told
    cleared(tmp_path)
    assert (await transfer("export", "parquet"))[0] == 0
    read = FORMATS["parquet"].read(tmp_path / "m.parquet")
    assert [message.payload for message in read] == PAYLOADS


@pytest.mark.parametrize(
    ("way", "file"), [("export", "m.jsonl.part"), ("import", STATES["import"])]
)
async def test_a_full_disk_is_that_of_a_named_file(
    transfer: Transfer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, file: str
) -> None:
    def full(_: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, told = await transfer(way)
    assert (code, f"No space left on device: '{tmp_path / file}'" in told) == (3, True), told
    assert f"The same command continues the {way}." in told
    assert (await transfer(way))[0] == 0


async def test_messages_that_were_purged_meanwhile_are_told(
    transfer: Transfer, http: Http, tmp_path: Path
) -> None:
    await transfer("export", cut=True)
    async with Client(http.url) as client:
        await client.purge("default/t", "now")
    code, told = await transfer("export")
    assert (code, "at least 4 messages are missing" in told) == (0, True), told
    (tmp_path / "m.jsonl").unlink()
    code, told = await transfer("export")
    assert (code, "missing" in told) == (0, False), told
