"""Wake-ups that are sent to other processes."""

import asyncio
from typing import Any

from broker.rowlog.wakeups import Wakeups
from tests.kit.bench import settle


class Sent:
    """A coordinator that counts hints, and a clock whose delay ends when the test says so."""

    def __init__(self) -> None:
        self.hints = 0
        self.over = asyncio.Event()

    async def hint(self, _: str) -> None:
        self.hints += 1

    async def sleep(self, _: float) -> None:
        await self.over.wait()


async def test_a_put_in_the_step_that_ends_the_delay_sends_a_wake_up() -> None:
    sent: Any = Sent()
    wakeups = Wakeups("mq", sent, sent)
    wakeups.wake("a", 100)
    await settle()
    assert sent.hints == 1
    sent.over.set()
    # This runs after the sender has looked for more puts, and before its task counts as ended.
    asyncio.get_running_loop().call_soon(wakeups.wake, "a", 100)
    await settle()
    assert sent.hints == 2
