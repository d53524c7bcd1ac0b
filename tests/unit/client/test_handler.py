"""Handlers of all kinds run in the right thread."""

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from broker.client.handler import Calling

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
    assert await Calling(handler, executor, in_store=False).hand("m", None) is None
    [(_, given, thread)] = CALLS
    assert (given, thread == HERE) == (("m",), is_here)


@pytest.mark.parametrize(
    ("handler", "work", "here"),
    [
        (waits, waiting_work, [True] * 3),
        (waits, plain_work, [False, True, False]),
        (plain, waiting_work, [True, False, True]),
        (plain, plain_work, [False] * 3),
    ],
)
async def test_a_work_block_encloses_the_call(executor, handler, work, here):
    calling = Calling(handler, executor, in_store=True)
    assert await calling.hand("m", work) is None
    assert [name for name, _, _ in CALLS] == ["begin", handler.__name__, "end"]
    assert CALLS[1][1] == ("m", "value")
    assert [thread == HERE for _, _, thread in CALLS] == here
    CALLS.clear()
    assert await calling.skip(work) is None
    assert [name for name, _, _ in CALLS] == ["begin", "end"]


async def test_a_coroutine_that_a_plain_handler_returns_is_awaited(executor):
    calling = Calling(returns_a_coroutine, executor, in_store=True)
    assert await calling.hand("m", plain_work) is None
    assert [name for name, _, _ in CALLS] == ["begin", "waits", "end"]
