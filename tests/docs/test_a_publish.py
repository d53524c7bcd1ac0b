"""The page ``a-publish.md`` names the same files as the trace of a publish."""

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import broker
from broker.config.sections import Config, ServerConfig, StorageConfig
from broker.node.node import Node
from tests.kit.serving import Http, topic_path

ROOT = Path(broker.__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "a-publish.md"
FILES_MAX = 15
TEXT = {"Content-Type": "text/plain"}
LOG = "broker/storage/leveldb/database.py"
"""The last file of the path: it calls LevelDB."""
PERIODIC = {"broker/monitor.py", "broker/turns.py"}
"""Files with periodic work, which may run during a publish."""


def name_of(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT / "broker") else None


class Trace:
    """The files that a publish enters, and the files that call them."""

    def __init__(self) -> None:
        self.entered: dict[str, None] = {}
        self.through: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (name := name_of(frame)) is None:
            return
        self.entered.setdefault(name)
        above = frame.f_back
        while above is not None:
            if (caller := name_of(above)) is not None and caller != name:
                self.through.setdefault(name, set()).add(caller)
                break
            above = above.f_back


@pytest.fixture
def traced() -> Iterator[Trace]:
    yield Trace()
    sys.setprofile(None)
    threading.setprofile(None)


def listed(section: str) -> list[str]:
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^(?:\d+\.|\*) `(broker/[\w/]+\.py)`", text, re.MULTILINE)


async def test_the_page_names_each_file_of_a_publish(tmp_path: Path, traced: Trace) -> None:
    is_on = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if is_on:
            traced(frame, event, argument)

    sys.setprofile(profile)
    threading.setprofile(profile)
    node = Node(Config(server=ServerConfig(port=0), storage=StorageConfig(data_dir=tmp_path)))
    await node.start()
    try:
        async with Http(node.port) as http:
            assert (await http("PUT", topic_path("t"))).status == 200
            claimed = await http("POST", topic_path("t", "publish"), b"hello", headers=TEXT)
            is_on = True
            answer = await http("POST", topic_path("t", "publish"), b"hello", headers=TEXT)
            is_on = False
            assert (claimed.status, answer.status) == (200, 200)
    finally:
        await node.stop()
    way, beside = listed("The way"), listed("Beside the way")
    assert LOG in traced.entered
    assert sorted(way + beside) == sorted(traced.entered.keys() - PERIODIC)
    assert len(way) <= FILES_MAX
    for step, name in enumerate(way[1:], start=1):
        assert traced.through.get(name, set()) <= {*way}, f"step {step}: {name}"
