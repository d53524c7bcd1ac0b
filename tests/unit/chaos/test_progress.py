import asyncio
from contextlib import suppress

import pytest

from broker.testing.history import History
from chaos import progress


async def test_a_line_tells_what_was_answered_and_what_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "LOOK_S", 0.0)
    now_ns = 0
    history = History(lambda: now_ns)
    said: asyncio.Queue[str] = asyncio.Queue()
    watched = progress.Progress(history, said.put_nowait)
    ending = history.invoke("p", "publish", "a", {"payloads": ["1"]})
    now_ns = 7_000_000
    ending.ok({"last": ""}, "")
    history.invoke("p", "publish", "a", {"payloads": ["2"]}).unknown("cut")
    history.invoke("q", "read", "a", {}).ok({"rows": []})
    watched.faults = ("kill", "pause")
    telling = asyncio.create_task(watched.tell())
    async with asyncio.timeout(10):
        line = await said.get()
    telling.cancel()
    with suppress(asyncio.CancelledError):
        await telling
    assert watched.acknowledged == 1
    for part in ("1 ok", "p99 7 ms", "0 fail", "1 unknown", "kill, pause"):
        assert part in line
