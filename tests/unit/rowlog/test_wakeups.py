"""Wake-ups that are sent to other processes, and those that come from them."""

import asyncio
from collections.abc import Callable
from typing import Any

from broker.rowlog.wakeups import Wakeups
from tests.kit.bench import settle


class Sent:
    """A coordinator that counts hints and keeps their listeners, and a clock whose delay ends when the test says so."""

    def __init__(self) -> None:
        self.hints = 0
        self.listening: list[Callable[[], None]] = []
        self.over = asyncio.Event()

    async def hint(self, _: str) -> None:
        self.hints += 1

    def on_hint(self, _: str, hinted: Callable[[], None]) -> None:
        self.listening.append(hinted)

    async def sleep(self, _: float) -> None:
        await self.over.wait()


async def test_a_processor_that_listens_again_is_woken_once_by_each_hint() -> None:
    sent: Any = Sent()
    wakeups = Wakeups("mq", sent, sent)
    woken: list[str] = []
    for _ in range(3):
        unlisten = wakeups.listen("a", lambda: woken.append("a"))
        unlisten()
    wakeups.listen("a", lambda: woken.append("a"))
    for hinted in sent.listening:
        hinted()
    assert woken == ["a"]


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
