"""Working off a row's messages by the caller: a WAL's secondary actions, before the call returns."""

from __future__ import annotations

from collections.abc import Sequence

from broker.errors import Fenced, OutcomeUnknown
from broker.rowlog import execution_state
from broker.rowlog.attempt import Attempts
from broker.rowlog.entries import Entries
from broker.rowlog.execution_state import Busy, Gone, unknown, waits_for, without
from broker.rowlog.listeners import LocalListeners
from broker.rowlog.meta import Meta
from broker.rowlog.refusals import MessagesOpen
from broker.rowlog.row_table import TableError
from broker.rowlog.rows import Found, Message, Rows
from broker.rowlog.setup import Setup


class WorkingOff:
    """Calls the local listeners for the messages of a row, in order."""

    def __init__(
        self,
        attempts: Attempts,
        messages: Rows,
        meta: Meta,
        entries: Entries,
        listeners: LocalListeners,
    ) -> None:
        """Use the parts of a rowlog."""
        self._attempts = attempts
        self.messages = messages
        self.meta = meta
        self._entries = entries
        self.listeners = listeners

    async def process(self, message: Message) -> bool:
        """Call the listeners of a message in their order, and return whether it is done for all.

        Messages of the row that come before it are worked off first. A subscription without a listener in this
        process stays open, and so does one whose listener fails. A dead letter is not done.
        """
        setup, found = await self._found(message.row)
        stuck: dict[str, str] = {}
        for each in found:
            if each.id > message.id:
                break
            state = await self._work_off_one(message.row, each, setup, stuck)
            if each.id == message.id:
                return state.is_finished
        return True

    async def work_off(self, row: bytes) -> None:
        """Work off all open messages of a row.

        Raises:
            MessagesOpen: some stay open; the text says which, and why.
        """
        setup, found = await self._found(row)
        stuck: dict[str, str] = {}
        for each in found:
            await self._work_off_one(row, each, setup, stuck)
        if stuck:
            reasons = [*stuck.values()][:5]
            raise MessagesOpen(f"Messages of the row are still open: {'; '.join(reasons)}.")

    async def _found(self, row: bytes) -> tuple[Setup, list[Found]]:
        found = await self.messages.open(row)
        return await self._known(found), found

    async def _known(self, found: Sequence[Found]) -> Setup:
        """Return a setup that has all subscriptions of these messages, except removed ones."""
        setup = await self.meta.setup()
        return (
            await self.meta.fresh() if any(unknown(each.state, setup) for each in found) else setup
        )

    async def _work_off_one(
        self, row: bytes, found: Found, setup: Setup, stuck: dict[str, str]
    ) -> execution_state.State:
        """Return the state that the message was left in. ``stuck``: why a subscription got no further."""
        state = without(found.state, unknown(found.state, setup))
        if state.is_finished:
            await self._attempts.finished(row, found, state)
        for subscription in setup.current:
            name = subscription.id
            if not state.is_open(name):
                continue
            reason = "an earlier message of the row is open" if name in stuck else ""
            if not reason and waits_for(state, subscription, setup):
                reason = "an earlier subscription comes first"
            if not reason and not self.listeners.has(name):
                reason = "it has no listener in this process"
            if not reason:
                state, reason = await self._try(row, found, name, state)
            if reason and state.is_open(name):
                stuck.setdefault(name, f"message {found.id.seq} for '{name}': {reason}")
        return state

    async def _try(
        self, row: bytes, found: Found, name: str, state: execution_state.State
    ) -> tuple[execution_state.State, str]:
        try:
            outcome = await self._attempts.attempt(row, found, name, self.listeners)
        except (Busy, Fenced) as busy:
            return state, str(busy)
        except Gone:
            return await self._after_gone(row, found, name, state)
        except (TableError, OutcomeUnknown) as error:
            return state, str(error)
        if outcome.is_done:
            await self._entries.index.remove(await self._entries.of(row, found, [name]))
        elif dead := outcome.state.dead:
            await self._entries.bury(row, await self._entries.of(row, found, dead))
        return outcome.state, outcome.reason

    async def _after_gone(
        self, row: bytes, found: Found, name: str, state: execution_state.State
    ) -> tuple[execution_state.State, str]:
        """Return the state in which another left a message: done, or a dead letter."""
        try:
            there = await self.messages.one(row, found.id)
        except TableError as error:
            return state, str(error)
        if there is None:
            return state.with_part(name, execution_state.DONE), ""
        removed = unknown(there.state, await self._known([there]))
        return without(there.state, removed), "another has it in work"
