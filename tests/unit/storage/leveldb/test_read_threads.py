import asyncio
import threading

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.long_work import CALLER
from broker.storage.leveldb.read_threads import Readers
from tests.kit.bench import settle


async def test_the_caller_gets_an_error_and_the_thread_goes_on() -> None:
    def fail() -> None:
        raise StorageCorrupt("a block")

    readers = Readers(deadline_s=3600.0)
    for _ in range(9):
        with pytest.raises(StorageCorrupt):
            await readers.read(fail)
    assert await readers.read(lambda: 7) == 7
    readers.close()
    assert await asyncio.to_thread(readers.join)


async def test_a_read_that_hangs_fails_after_its_deadline() -> None:
    readers, may_end = Readers(deadline_s=0.5), threading.Event()
    with pytest.raises(Unavailable, match="a read has not ended"):
        await readers.read(lambda: may_end.wait(20))
    may_end.set()
    assert await readers.read(lambda: 7) == 7
    readers.close()
    assert await asyncio.to_thread(readers.join)
    with pytest.raises(Unavailable, match="closed"):
        await readers.read(lambda: 7)


async def test_a_read_that_hangs_fails_although_others_are_answered() -> None:
    readers, may_end = Readers(deadline_s=0.5), threading.Event()
    hangs = asyncio.ensure_future(readers.read(lambda: may_end.wait(20)))
    answered = 0
    while not hangs.done():
        answered += await readers.read(lambda: 1)
    with pytest.raises(Unavailable, match="a read has not ended"):
        await hangs
    assert answered > 10
    may_end.set()
    readers.close()
    assert await asyncio.to_thread(readers.join)


async def test_reads_of_one_caller_do_not_delay_those_of_another() -> None:
    readers, may_end = Readers(deadline_s=3600.0), threading.Event()
    done: list[str] = []

    async def read(caller: str) -> None:
        CALLER.set(caller)
        await readers.read(lambda: done.append(caller))

    hang = [asyncio.ensure_future(readers.read(lambda: may_end.wait(20))) for _ in range(2)]
    many = [asyncio.ensure_future(read("a")) for _ in range(100)]
    await settle(1)
    other = asyncio.ensure_future(read("b"))
    await settle(1)
    may_end.set()
    await asyncio.gather(*hang, *many, other)
    assert done.index("b") <= 3
    readers.close()
    assert await asyncio.to_thread(readers.join)
