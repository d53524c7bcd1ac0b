"""One attempt at one message for one subscription: claim it, call the listener, mark the result.

The mark is tried until its outcome is known: a listener was called, and only the mark keeps the message from being
offered again.

If a mark finds its claim gone, there are three cases: another has taken the message over; the message is settled
otherwise, since its subscription was removed; or an earlier attempt at this mark, of unknown outcome, made it, and the
state was changed or deleted afterwards. Two readings tell them apart. A claim of a later epoch in the state, or a later
epoch of the processor's resource, means: fenced. A successor raises the epoch before its first claim, so the second
reading also finds one whose own mark has hidden its claim. Otherwise the processor still leads, and goes on from the
state as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from broker import logs, retries
from broker.clock import Clock
from broker.errors import Fenced, NoLeader, OutcomeUnknown, Unavailable
from broker.rowlog import execution_state
from broker.rowlog.counters import Figures
from broker.rowlog.execution_state import (
    BY_CALL,
    BY_PROCESSOR,
    DONE,
    Busy,
    Claimer,
    Failure,
    Gone,
    Standing,
    State,
)
from broker.rowlog.first_seen import FirstSeen
from broker.rowlog.listeners import NoListener, Offers, reason_of
from broker.rowlog.meta import Meta
from broker.rowlog.row_table import TableError
from broker.rowlog.rows import Decide, Found, Message, Rows

log = logs.get_logger()

MARK_S: Final = 30.0
"""For how long a mark is tried while the table does not answer."""
PAUSE_S: Final = 0.2
_RETRIED: Final = (TableError, OutcomeUnknown)


class Outcome(NamedTuple):
    """The result of an attempt."""

    state: State
    """The message's state after the attempt."""
    is_done: bool
    reason: str = ""
    """Why the attempt failed; empty if it is done."""


@dataclass
class Tools:
    """The parts of a rowlog that attempts use."""

    rowlog: str
    rows: Rows
    meta: Meta
    clock: Clock
    figures: Figures
    chance: Callable[[], float]


class Elected(Protocol):
    """An elected processor, as its attempts see it."""

    @property
    def epoch(self) -> int:
        """The epoch of the processor; above 0."""

    def may_begin(self) -> bool:
        """Return whether new work may begin."""

    async def check(self, meta: Meta) -> None:
        """Raise Fenced if a later epoch leads. Raises TableError."""


class _Claim(NamedTuple):
    """A message that this attempt has claimed for a subscription."""

    row: bytes
    found: Found
    name: str
    token: bytes
    leading: Elected | None


class Attempts:
    """Attempts of one process, at the messages of one rowlog."""

    def __init__(self, tools: Tools) -> None:
        """Use the tools."""
        self._tools = tools
        self._seen = FirstSeen(tools.clock)
        """The claims of others."""

    async def attempt(
        self,
        row: bytes,
        found: Found,
        name: str,
        offers: Offers,
        leading: Elected | None = None,
    ) -> Outcome:
        """Claim a message, offer it to a listener, and mark the result.

        Args:
            row: the key of the message's row.
            found: the message.
            name: the subscription.
            offers: the listeners.
            leading: the elected processor that attempts; None: a ``process`` call attempts.

        Raises:
            Gone, Busy: the message was not claimed.
            Fenced: a later epoch works on it, or another took it over.
            NoLeader: the processor lost contact with its coordinator between claim and listener.
            TableError, OutcomeUnknown: the table does not answer. The message will be offered again.
        """
        tools = self._tools
        setup = await tools.meta.setup()
        kind, epoch = (BY_CALL, 0) if leading is None else (BY_PROCESSOR, leading.epoch)
        by = Claimer(kind + secrets.token_bytes(8), tools.clock.now_ms(), epoch)

        def claim(state: State) -> State:
            there = state.parts.get(name)
            seen_at = self._seen.ms(there.token) if there is not None and there.token else 0
            return execution_state.claim(state, name, by, seen_at, setup.settings)

        message = await self.message(row, found)
        await tools.rows.change(row, found.id, claim, found.raw)
        claimed = _Claim(row, found, name, by.token, leading)
        if leading is not None and not leading.may_begin():
            await self._give_back(claimed)
            raise NoLeader("This processor has lost contact with its coordinator.")
        timeout_s = setup.settings.listener_timeout_s
        if leading is None:  # The call must end before a processor may take the message over.
            timeout_s = min(timeout_s, setup.settings.claim_timeout_ms / 1000 * 0.8)
        try:
            reason = await self._offered(message, name, offers, timeout_s)
        except NoListener as none:
            await self._give_back(claimed)
            raise Busy(str(none)) from none
        except BaseException:  # Also of a listener that ends the program.
            await self._give_back(claimed)
            raise
        return await self._marked(claimed, reason)

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
        """Offer a message to a listener. Return why that failed, or an empty text if the message is done."""
        figures, began = self._tools.figures, self._tools.clock.monotonic()
        try:
            is_done = await offers.offer(name, message, timeout_s)
            reason = "" if is_done else "the listener returned False"
        except NoListener:
            raise
        except Exception as error:  # noqa: BLE001 - Any error of a listener is a failed try.
            reason = reason_of(error)
        figures.tried(name, self._tools.clock.monotonic() - began, is_done=not reason)
        if reason:
            log.warning("rowlog try failed", subscription=name, seq=message.seq, reason=reason)
        return reason

    async def _give_back(self, claimed: _Claim) -> None:
        decide = partial(execution_state.given_back, name=claimed.name, token=claimed.token)
        try:
            await self._tools.rows.change(claimed.row, claimed.found.id, decide)
        except (Gone, TableError, OutcomeUnknown):
            return  # The claim ends with its time-out, or when the next epoch claims.

    async def _marked(self, claimed: _Claim, reason: str) -> Outcome:
        tools, (row, found, name, token, _) = self._tools, claimed
        setup = await tools.meta.setup()

        def mark(state: State) -> State:
            if not reason:
                return execution_state.done(state, name, token)
            failure = Failure(tools.clock.now_ms(), reason, tools.chance())
            return execution_state.failed(state, name, token, failure, setup)

        state = await self._mark(claimed, mark, is_done=not reason)
        standing = state.parts[name].standing
        if standing is Standing.DEAD:
            tools.figures.died(name)
        state = await self.finished(row, found, state)
        return Outcome(state, standing is Standing.DONE, reason)

    async def _mark(self, claimed: _Claim, mark: Decide, *, is_done: bool) -> State:
        """Mark a message. Retry until the outcome is known, for MARK_S at most.

        Raises Fenced, TableError, OutcomeUnknown.
        """
        clock, rows = self._tools.clock, self._tools.rows
        maybe: set[bytes] = set()

        async def once() -> State:
            try:
                return await rows.change(claimed.row, claimed.found.id, mark, maybe=maybe)
            except Gone:
                may_be_open = bool(maybe) and not is_done
                return await self._state_without_claim(
                    claimed, is_done=is_done, may_be_open=may_be_open
                )

        deadline = clock.monotonic() + MARK_S

        def pause_s(error: Exception, _: int) -> float | None:
            is_over = clock.monotonic() > deadline
            return PAUSE_S if isinstance(error, _RETRIED) and not is_over else None

        return await retries.repeat(once, pause_s, clock.sleep)

    async def _state_without_claim(
        self, claimed: _Claim, *, is_done: bool, may_be_open: bool
    ) -> State:
        """Return the state of a message whose claim is gone.

        Args:
            claimed: the claim.
            is_done: whether the listener was done with the message.
            may_be_open: whether this attempt may have left the message open, by a mark "failed" of unknown outcome.

        Raises:
            Fenced: another took the message over, or a later epoch leads.
            Gone: the try failed, and the message is not there any more.
            TableError: the table did not answer; nothing is known yet.
        """
        row, found, name, _, leading = claimed
        there = await self._tools.rows.one(row, found.id)
        # A deleted message is done for all subscriptions. Yet only this part counts as done: nothing may be deleted
        # because a reading did not find it.
        state = found.state.with_part(name, DONE) if there is None else there.state
        part = state.parts[name]
        is_later = leading is not None and part.epoch > leading.epoch
        if is_later or (part.standing is Standing.OPEN and not may_be_open):
            raise Fenced("Another took this message over before it was marked.")
        if leading is not None:
            await leading.check(self._tools.meta)
        if there is None and not is_done:
            raise Gone
        return state

    async def finished(self, row: bytes, found: Found, state: State) -> State:
        """Delete a message if it is done for all current subscriptions. Return its state."""
        tools = self._tools
        try:
            setup = await tools.meta.setup()
            if not state.is_finished and execution_state.unknown(state, setup):
                # A subscription that this process does not know yet must not count as removed.
                removed = execution_state.unknown(state, await tools.meta.fresh())
                if removed:
                    decide = partial(execution_state.without, names=removed)
                    state = await tools.rows.change(row, found.id, decide)
            if state.is_finished:
                await tools.rows.remove(row, [found.id])
        except (Gone, TableError, OutcomeUnknown, Unavailable) as error:
            log.info("rowlog message not deleted yet", seq=found.id.seq, reason=str(error))
        return state


__all__ = ["Attempts", "Busy", "Elected", "Outcome", "Tools"]
