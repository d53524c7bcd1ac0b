import asyncio
import threading

import pytest

from broker.storage.leveldb.pending_calls import Pending, WriteResult


async def test_answers_arrive_in_the_order_in_which_the_thread_gives_them() -> None:
    pending = Pending(3600.0, TimeoutError)
    order: list[str] = []
    one, other = pending.add(), pending.add()

    def tell() -> None:
        pending.tell(
            [WriteResult(one, 1), WriteResult(other, None, OSError("other"))],
            lambda: order.append("a"),
        )
        pending.tell([], lambda: order.append("b"))

    thread = threading.Thread(target=tell)
    thread.start()
    assert await one == 1
    with pytest.raises(OSError, match="other"):
        await other
    thread.join(20)
    pending.close()
    assert order[:1] == ["a"]


async def test_the_answer_of_a_cancelled_call_is_dropped() -> None:
    pending = Pending(3600.0, TimeoutError)
    call = pending.add()
    call.cancel()
    pending.answer([WriteResult(call, 1)])
    assert call.cancelled()
    pending.close()


async def test_all_waiting_calls_fail_when_no_answer_arrives_in_time() -> None:
    pending = Pending(0.01, lambda: TimeoutError("hung"))
    calls = [pending.add(), pending.add()]
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, TimeoutError)
    pending.answer([WriteResult(calls[0], 1)])  # Too late.
    later = pending.add()
    pending.answer([WriteResult(later, 2)])
    assert await later == 2
    pending.close()


async def test_answers_after_the_loop_is_closed_are_dropped() -> None:
    pending = await asyncio.to_thread(lambda: asyncio.run(_made()))
    pending.tell([])


async def _made() -> Pending:
    return Pending(1.0, TimeoutError)
