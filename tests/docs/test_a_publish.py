"""The page ``a-publish.md`` names the same files as the traces of a publish and of a poll."""

import re
import sys
import threading
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import broker
from broker.config.sections import Config, ServerConfig, StorageConfig
from broker.model import Poll
from broker.node.node import Node
from broker.wire import avro
from tests.kit.serving import Http, topic_path

ROOT = Path(broker.__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "a-publish.md"
FILES_MAX = 10
TEXT = {"Content-Type": "text/plain"}
AVRO = {"Content-Type": "avro/binary"}
LAST = {
    "publish": "broker/storage/leveldb/write_thread.py",
    "poll": "broker/topics/topic_reader.py",
}
"""The last file of each way: it writes to LevelDB, and reads the cache."""
PERIODIC = {"broker/node/monitor.py", "broker/turns.py"}
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


def listed(section: str) -> list[str]:
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^(?:\d+\.|\*) `(broker/[\w/]+\.py)`", text, re.MULTILINE)


async def test_the_page_names_each_file_of_a_publish_and_of_a_poll(tmp_path: Path) -> None:
    traced: Trace | None = None

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if traced is not None:
            traced(frame, event, argument)

    sys.setprofile(profile)
    threading.setprofile(profile)
    node = Node(Config(server=ServerConfig(port=0), storage=StorageConfig(data_dir=tmp_path)))
    await node.start()
    asked = {"publish": (b"hello", TEXT), "poll": (avro.encode_poll(Poll()), AVRO)}
    traces: dict[str, Trace] = {}
    try:
        async with Http(node.port) as http:
            assert (await http("PUT", topic_path("t"))).status == 200
            assert (
                await http("POST", topic_path("t", "publish"), b"a", headers=TEXT)
            ).status == 200
            for action, (body, headers) in asked.items():
                traces[action] = traced = Trace()
                answer = await http("POST", topic_path("t", action), body, headers=headers)
                traced = None
                assert answer.status == 200
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        await node.stop()
    ways = {"publish": listed("A publish"), "poll": listed("A poll")}
    beside = listed("Beside the way")
    entered = {name for trace in traces.values() for name in trace.entered} - PERIODIC
    assert sorted({*beside, *chain(*ways.values())}) == sorted(entered)
    for action, way in ways.items():
        assert way[-1] == LAST[action]
        assert len(way) <= FILES_MAX
        assert set(way) <= traces[action].entered.keys()
        for step, name in enumerate(way[1:], start=1):
            callers = traces[action].through.get(name, set())
            assert not callers or callers & set(way[:step]), (
                f"{action}, step {step}: {name} by {callers}"
            )
