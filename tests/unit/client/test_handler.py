"""Handlers of all kinds run in the right thread, and are retried up to their limit."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from broker.client.handler import Calling, GaveUp, Trying

CALLS: list[tuple[str, Any, int]] = []
HERE = threading.get_ident()


async def waits(*given: Any) -> None:
    CALLS.append(("waits", given, threading.get_ident()))


def plain(*given: Any) -> None:
    CALLS.append(("plain", given, threading.get_ident()))


def returns_a_coroutine(*given: Any) -> Any:
    return waits(*given)


class Waits:
    async def __call__(self, *given: Any) -> None:
        await waits(*given)


@contextmanager
def plain_work() -> Iterator[str]:
    CALLS.append(("begin", None, threading.get_ident()))
    yield "value"
    CALLS.append(("end", None, threading.get_ident()))


@asynccontextmanager
async def waiting_work() -> AsyncIterator[str]:
    CALLS.append(("begin", None, threading.get_ident()))
    yield "value"
    CALLS.append(("end", None, threading.get_ident()))


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    CALLS.clear()
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize(
    ("handler", "is_here"),
    [
        *((waits, True), (Waits(), True), (partial(waits), True)),
        *((plain, False), (partial(plain), False), (returns_a_coroutine, True)),
    ],
)
async def test_a_handler_is_called_in_its_own_way(executor, handler, is_here):
    await Calling(handler, executor).hand("m", None)
    [(_, given, thread)] = CALLS
    assert (given, thread == HERE) == (("m",), is_here)


@pytest.mark.parametrize(
    ("handler", "work", "here"),
    [
        (waits, waiting_work, [True] * 3),
        (waits, plain_work, [True] * 3),
        (plain, waiting_work, [True, False, True]),
        (plain, plain_work, [False] * 3),
    ],
)
async def test_a_work_block_encloses_the_call(executor, handler, work, here):
    await Calling(handler, executor).hand("m", work)
    assert [name for name, _, _ in CALLS] == ["begin", handler.__name__, "end"]
    assert CALLS[1][1] == ("m", "value")
    assert [thread == HERE for _, _, thread in CALLS] == here
    CALLS.clear()
    await Calling(handler, executor).skip(work)
    assert [name for name, _, _ in CALLS] == ["begin", "end"]


async def test_plain_work_refuses_a_handler_that_returns_a_coroutine(executor):
    with pytest.raises(TypeError):
        await Calling(returns_a_coroutine, executor).hand("m", plain_work)
    assert [name for name, _, _ in CALLS] == ["begin"]


async def test_retries_end_at_their_limit_and_each_is_reported():
    told, pauses = [], []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def fails() -> None:
        raise ValueError(len(told))

    trying = Trying(tries_max=4, delay_min_s=1, delay_max_s=3, sleep=sleep)
    with pytest.raises(GaveUp) as gave_up:
        await trying.run(fails, lambda error, tries: told.append((str(error), tries)))
    assert told == [("0", 1), ("1", 2), ("2", 3), ("3", 4)]
    assert (gave_up.value.tries, str(gave_up.value.error)) == (4, "3")
    assert all(
        longest / 2 <= pause <= longest for pause, longest in zip(pauses, (1, 2, 3), strict=True)
    )


@pytest.mark.parametrize("error", [KeyError("final"), asyncio.CancelledError(), SystemExit(1)])
async def test_some_errors_end_the_retries_at_once(error):
    calls = []

    async def fails() -> None:
        calls.append(1)
        raise error

    trying = Trying(tries_max=4, delay_min_s=0, delay_max_s=0, sleep=asyncio.sleep)
    with pytest.raises(type(error)):
        await trying.run(fails, lambda *_: None, (KeyError,))
    assert calls == [1]
