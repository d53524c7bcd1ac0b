"""Budgets: what requests make a node hold or compute is counted before it is held or computed.

Each kind of thing has three bounds: for a connection, for a caller (an address, with all its connections),
and for the node. A request takes from all three at once and gives back to all three::

    connection ──┐
    connection ──┴─▶ caller ──┐
    connection ────▶ caller ──┴─▶ node

A connection over its own bound is refused: its request is too large. When the bound of a caller or of the
node is reached, the largest holder must make room: the connection that holds the most of the caller that
holds the most. If that is the connection that asks, its request is refused; else the largest is cut, and
the one that asks goes on. So a client that holds little is never refused because another holds much.

Lines of logs are counted by the second: nothing gives them back but time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.errors import BodyTooLarge, BrokerError, Overloaded

_MIB: Final = 1024 * 1024


class BudgetKind(enum.StrEnum):
    """What is counted; the label of the metric."""

    HEAD_BYTES = "head_bytes"
    BODY_BYTES = "body_bytes"
    ITEMS = "items"
    REPLY_BYTES = "reply_bytes"
    ROWS = "rows"
    WAITING = "waiting"
    LOG_LINES = "log_lines"


class Bounds(NamedTuple):
    """The most of one kind that may be held; ``doc`` says what of."""

    connection: int
    caller: int
    node: int
    doc: str = ""


DEFAULTS: Final[Mapping[BudgetKind, Bounds]] = {
    BudgetKind.HEAD_BYTES: Bounds(
        512 * 1024, 16 * _MIB, 32 * _MIB, "Bytes of request heads, and of what came behind them."
    ),
    BudgetKind.BODY_BYTES: Bounds(
        192 * _MIB, 256 * _MIB, 384 * _MIB, "Bytes of bodies, as sent and as inflated."
    ),
    BudgetKind.ITEMS: Bounds(
        2_000_000,
        4_000_000,
        8_000_000,
        "Messages of decoded bodies; eight pointers of a snapshot count as one.",
    ),
    BudgetKind.REPLY_BYTES: Bounds(
        160 * _MIB, 320 * _MIB, 512 * _MIB, "Bytes of replies that the reader has not taken."
    ),
    BudgetKind.ROWS: Bounds(
        20_000_000, 40_000_000, 80_000_000, "Rows that requests under way have looked at."
    ),
    BudgetKind.WAITING: Bounds(1, 10_000, 10_000, "Requests that wait: long polls, event streams."),
    BudgetKind.LOG_LINES: Bounds(5, 20, 100, "Lines a second that requests cause in the log."),
}

BY_THE_SECOND: Final = frozenset({BudgetKind.LOG_LINES})


class Cut(ConnectionError):
    """The connection was cut, since it held the most of something that had run out."""


class Budgets:
    """All that a node counts. Used in one thread, that of the event loop."""

    def __init__(self, bounds: Mapping[BudgetKind, Bounds] = DEFAULTS) -> None:
        """Hold nothing yet; kinds that ``bounds`` lacks are bounded as by default."""
        self.bounds: Mapping[BudgetKind, Bounds] = {**DEFAULTS, **bounds}
        self.held: dict[BudgetKind, int] = dict.fromkeys(BudgetKind, 0)
        self.refused: dict[BudgetKind, int] = dict.fromkeys(BudgetKind, 0)
        """How many requests were refused or cut, by what had run out."""
        self.callers: dict[str, Caller] = {}

    def account(self, address: str, cut: Callable[[BudgetKind], None]) -> Account:
        """Return the account of a new connection; ``cut`` ends that connection, at once."""
        caller = self.callers.get(address)
        if caller is None:
            caller = self.callers[address] = Caller(address)
        account = Account(self, caller, cut)
        caller.accounts[account] = None
        return account

    def next_second(self) -> None:
        """Forget what is counted by the second."""
        for kind in BY_THE_SECOND:
            self.held[kind] = 0
            for caller in self.callers.values():
                caller.held.pop(kind, None)
                for account in caller.accounts:
                    account.held.pop(kind, None)


class Caller:
    """A client by its address, with all its connections."""

    __slots__ = ("accounts", "address", "held")

    def __init__(self, address: str) -> None:
        """Hold nothing."""
        self.address = address
        self.held: dict[BudgetKind, int] = {}
        self.accounts: dict[Account, None] = {}


class Account:
    """What one connection holds."""

    __slots__ = ("_budgets", "_caller", "_cut", "held", "is_cut")

    def __init__(self, budgets: Budgets, caller: Caller, cut: Callable[[BudgetKind], None]) -> None:
        """Hold nothing. ``Budgets.account`` makes one."""
        self._budgets = budgets
        self._caller = caller
        self._cut = cut
        self.held: dict[BudgetKind, int] = {}
        self.is_cut = False

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        """Hold ``amount`` more, before it is there.

        Raises, holding no more than before:
            BodyTooLarge: this connection has as much as one may have.
            Overloaded: its caller, or the node, has; and no other connection has more.
            Cut: this connection made room for others.
        """
        if self.is_cut:
            raise Cut("The connection was cut: it held the most of what had run out.")
        held, caller, budgets = self.held.get(kind, 0), self._caller, self._budgets
        bounds = budgets.bounds[kind]
        if held + amount > bounds.connection:
            budgets.refused[kind] += 1
            raise _too_much(kind, bounds.connection)
        while caller.held.get(kind, 0) + amount > bounds.caller:
            self._make_room(kind, amount, caller)
        while budgets.held[kind] + amount > bounds.node:
            self._make_room(kind, amount, None)
        self.held[kind] = held + amount
        caller.held[kind] = caller.held.get(kind, 0) + amount
        budgets.held[kind] += amount

    def give(self, kind: BudgetKind, amount: int = 1) -> None:
        """Hold ``amount`` less. After a cut nothing is held, and this does nothing."""
        held = self.held.get(kind, 0)
        amount = min(amount, held)
        if not amount:
            return
        if amount == held:
            del self.held[kind]
        else:
            self.held[kind] = held - amount
        self._caller.held[kind] -= amount
        self._budgets.held[kind] -= amount

    def may_log(self) -> bool:
        """Count a line of the log; False: there were too many within this second."""
        try:
            self.take(BudgetKind.LOG_LINES)
        except (BrokerError, Cut):
            return False
        return True

    def close(self) -> None:
        """Give all back; the connection has ended, and is kept from here no more."""
        self._cut = _nothing
        for kind, amount in list(self.held.items()):
            self.give(kind, amount)
        self._caller.accounts.pop(self, None)
        if not self._caller.accounts:
            self._budgets.callers.pop(self._caller.address, None)

    def _make_room(self, kind: BudgetKind, amount: int, within: Caller | None) -> None:
        """Cut the largest holder, of one caller or of all. Raises Overloaded if it is this one."""
        budgets, mine = self._budgets, self.held.get(kind, 0) + amount
        budgets.refused[kind] += 1
        if within is None:
            callers = budgets.callers.values()
            within = max(callers, key=lambda each: each.held.get(kind, 0) + (each is self._caller))
        largest = max(within.accounts, key=lambda each: each.held.get(kind, 0))
        if kind in BY_THE_SECOND or largest is self or largest.held.get(kind, 0) <= mine:
            raise Overloaded(f"Too much is under way on this node ({kind}). Try again.")
        largest.cut(kind)

    def cut(self, kind: BudgetKind) -> None:
        """End the connection to make room; what it holds counts no more."""
        self.is_cut = True
        self._cut(kind)
        for each, amount in list(self.held.items()):
            self.give(each, amount)


class Hold:
    """What one request holds of its connection's account; ``close`` gives the rest back."""

    __slots__ = ("_account", "held")

    def __init__(self, account: Account | None) -> None:
        """Hold nothing. Without an account, as within the process, nothing is bounded."""
        self._account = account
        self.held: dict[BudgetKind, int] = {}

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        """Hold more. Raises as ``Account.take``."""
        if self._account is not None:
            self._account.take(kind, amount)
        self.held[kind] = self.held.get(kind, 0) + amount

    def give(self, kind: BudgetKind, amount: int | None = None) -> None:
        """Hold less; None: nothing more of this kind."""
        held = self.held.pop(kind, 0)
        amount = held if amount is None else min(amount, held)
        if amount < held:
            self.held[kind] = held - amount
        if self._account is not None and amount:
            self._account.give(kind, amount)

    def close(self) -> None:
        """Give all back."""
        for kind in list(self.held):
            self.give(kind)


def _nothing(_kind: BudgetKind) -> None:
    """Cut what has ended."""


def _too_much(kind: BudgetKind, bound: int) -> BrokerError:
    if kind in {BudgetKind.HEAD_BYTES, BudgetKind.BODY_BYTES, BudgetKind.ITEMS}:
        return BodyTooLarge(
            f"A request may have {bound:,} {kind}; this one has more. Send less at once."
        )
    return Overloaded(
        f"A connection may have {bound:,} {kind}. Use several, or ask for less at once."
    )
