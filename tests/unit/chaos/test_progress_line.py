import asyncio
from contextlib import suppress

import pytest

from chaos import progress_line
from chaos.history import History


async def test_a_line_has_the_counts_of_answers_and_the_present_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_line, "EVERY_S", 0.0)
    monkeypatch.setattr(progress_line, "LOOK_S", 0.0)
    now_ns = 0
    history = History(lambda: now_ns)
    said: asyncio.Queue[str] = asyncio.Queue()
    watched = progress_line.HistoryProgress(history, said.put_nowait)
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
    assert watched.silent == []
    for part in ("1 ok", "p99 7 ms", "0 fail", "1 unknown", "kill, pause"):
        assert part in line


async def test_a_topic_is_silent_until_it_acknowledges_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_line, "LOOK_S", 0.0)
    history = History(lambda: 0)
    watched = progress_line.HistoryProgress(history, lambda _: None)
    for topic in ("a", "b", "c"):
        history.invoke(f"p{topic}", "publish", topic, {"payloads": ["1"]}).ok({"last": ""}, "")
    under_way = history.invoke("p", "publish", "a", {"payloads": ["2"]})
    watched.mark()
    assert watched.silent == ["a"]
    history.invoke("q", "publish", "b", {"payloads": ["3"]}).fail("no")
    await watched.look()
    assert watched.silent == ["a", "b"]
    under_way.ok({"last": ""}, "")
    history.invoke("q", "publish", "b", {"payloads": ["4"]}).ok({"last": ""}, "")
    await watched.look()
    assert watched.silent == []


async def test_registers_are_asked_and_acknowledge_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "LOOK_S", 0.0)
    history = History(lambda: 0)
    watched = progress_line.HistoryProgress(history, lambda _: None)
    watched.mark()
    history.invoke("p", "cas", "", {"key": "k", "value": "a"}).fail("another was first")
    history.invoke("q", "get", "", {"key": "l"}).ok({"value": None})
    await watched.look()
    assert (watched.acknowledged, watched.silent) == (0, ["register k"])
    history.invoke("p", "cas", "", {"key": "k", "value": "b"}).ok({})
    await watched.look()
    assert (watched.acknowledged, watched.silent) == (1, [])
