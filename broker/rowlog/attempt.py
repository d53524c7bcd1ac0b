"""One attempt at one message for one subscription: claim, listener, mark; and a row's attempts in order.

The mark is tried until it is known, for as long as the claim is: a listener was called, and only the mark keeps the
message from being offered again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from broker import logs
from broker.clock import Clock
from broker.errors import Fenced, NoLeader, OutcomeUnknown, Unavailable
from broker.rowlog import execution_state
from broker.rowlog.counters import Figures
from broker.rowlog.execution_state import (
    BY_CALL,
    BY_PROCESSOR,
    Busy,
    Claimer,
    Failure,
    Gone,
    Standing,
    State,
)
from broker.rowlog.listeners import NoListener, Offers
from broker.rowlog.meta import Meta
from broker.rowlog.row_table import TableError
from broker.rowlog.rows import Decide, Found, Message, Rows

log = logs.get_logger()

MARK_S: Final = 30.0
"""How long a mark is tried while the table does not answer."""
PAUSE_S: Final = 0.2
REASON_MAX: Final = 300


class Outcome(NamedTuple):
    """What came of an attempt."""

    state: State
    """The message's state after it."""
    is_done: bool
    reason: str = ""


@dataclass
class Tools:
    """What attempts are made with."""

    rowlog: str
    rows: Rows
    meta: Meta
    clock: Clock
    figures: Figures
    chance: Callable[[], float]


class Attempts:
    """Attempts of one process, at the messages of one rowlog."""

    def __init__(self, tools: Tools) -> None:
        """Use the tools."""
        self._tools = tools

    async def attempt(
        self,
        row: bytes,
        found: Found,
        name: str,
        offers: Offers,
        *,
        epoch: int = 0,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Claim a message, offer it, and mark what came of it.

        Raises:
            Gone, Busy: it was not claimed.
            Fenced: a later epoch works on it.
            NoLeader: ``may_begin`` said no between claim and listener.
            TableError, OutcomeUnknown: the table does not answer; the message will be offered again.
        """
        tools = self._tools
        setup = await tools.meta.setup()
        kind = BY_PROCESSOR if epoch else BY_CALL
        by = Claimer(kind + secrets.token_bytes(8), epoch)

        def claim(state: State) -> State:
            return execution_state.claim(state, name, by, tools.clock.now_ms(), setup.settings)

        message = await self.message(row, found)
        await tools.rows.change(row, found.id, claim, found.raw)
        if not may_begin():
            await self._give_back(row, found, name, by.token)
            raise NoLeader("This processor has lost contact with its coordinator.")
        timeout_s = setup.settings.listener_timeout_s
        if not epoch:  # Before a processor may take the message over.
            timeout_s = min(timeout_s, setup.settings.claim_timeout_ms / 1000 * 0.8)
        try:
            reason = await self._offered(message, name, offers, timeout_s)
        except NoListener as none:
            await self._give_back(row, found, name, by.token)
            raise Busy(str(none)) from none
        except asyncio.CancelledError:
            await self._give_back(row, found, name, by.token)
            raise
        return await self._marked(row, found, name, by.token, reason)

    async def message(self, row: bytes, found: Found) -> Message:
        """Return a message with its payload. Raises Gone, TableError."""
        whole: Found | None = found
        if found.payload is None:
            whole = await self._tools.rows.one(row, found.id)
        if whole is None:
            raise Gone
        seq, timestamp = found.id
        return Message(self._tools.rowlog, row, seq, timestamp, whole.data, whole.payload or b"")

    async def _offered(self, message: Message, name: str, offers: Offers, timeout_s: float) -> str:
        """Return why it failed; nothing: it is done."""
        figures, began = self._tools.figures, self._tools.clock.monotonic()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                is_done = await offers.offer(name, message)
            reason = "" if is_done else "the listener returned False"
        except NoListener:
            raise
        except Exception as error:  # noqa: BLE001 - Whatever a listener raises is a failed try.
            reason = f"{type(error).__name__}: {error}"[:REASON_MAX]
            if limit.expired():
                reason = f"the listener took longer than {timeout_s:g} s"
        figures.tried(name, self._tools.clock.monotonic() - began, is_done=not reason)
        if reason:
            log.warning("rowlog try failed", subscription=name, seq=message.seq, reason=reason)
        return reason

    async def _give_back(self, row: bytes, found: Found, name: str, token: bytes) -> None:
        decide = partial(execution_state.given_back, name=name, token=token)
        try:
            await self._tools.rows.change(row, found.id, decide)
        except (Gone, TableError, OutcomeUnknown):
            return  # The claim ends by its time, or by the next epoch.

    async def _marked(
        self, row: bytes, found: Found, name: str, token: bytes, reason: str
    ) -> Outcome:
        tools = self._tools
        setup = await tools.meta.setup()

        def mark(state: State) -> State:
            if not reason:
                return execution_state.done(state, name, token)
            failure = Failure(tools.clock.now_ms(), reason, tools.chance())
            return execution_state.failed(state, name, token, failure, setup)

        state = await self._change(row, found, mark)
        if state.parts[name].standing is Standing.DEAD:
            tools.figures.died(name)
        return Outcome(await self.finished(row, found, state), not reason, reason)

    async def _change(self, row: bytes, found: Found, mark: Decide) -> State:
        """Mark a message, for as long as it takes to know. Raises Fenced, TableError, OutcomeUnknown."""
        clock = self._tools.clock
        deadline = clock.monotonic() + MARK_S
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((TableError, OutcomeUnknown)),
            wait=wait_fixed(PAUSE_S),
            stop=lambda _: clock.monotonic() > deadline,
            sleep=clock.sleep,
            reraise=True,
        )
        try:
            state: State = await retrying(self._tools.rows.change, row, found.id, mark)
        except Gone as gone:
            raise Fenced("Another took this message over before it was marked.") from gone
        return state

    async def finished(self, row: bytes, found: Found, state: State) -> State:
        """Delete a message that is done for all subscriptions that there are; return its state."""
        tools = self._tools
        try:
            setup = await tools.meta.setup()
            if not state.is_finished and execution_state.unknown(state, setup):
                # One that this process does not know yet must not count as removed.
                removed = execution_state.unknown(state, await tools.meta.fresh())
                if removed:
                    decide = partial(execution_state.without, names=removed)
                    state = await tools.rows.change(row, found.id, decide)
            if state.is_finished:
                await tools.rows.remove(row, [found.id])
        except (Gone, TableError, OutcomeUnknown, Unavailable) as error:
            log.info("rowlog message not deleted yet", seq=found.id.seq, reason=str(error))
        return state


__all__ = ["Attempts", "Busy", "Outcome", "Tools"]
