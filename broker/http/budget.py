"""Budgets: a node counts the memory and the work of requests before it spends them.

Each kind of resource has three bounds: for a connection, for a caller (an address, with all its connections),
and for the node. A request takes from all three at once, and gives back to all three::

    connection ──┐
    connection ──┴─▶ caller ──┐
    connection ────▶ caller ──┴─▶ node

If a connection goes over its own bound, its request is refused, because it is too large. When the bound of a caller or
of the node is reached, the largest holder must make room. The largest holder is the connection that holds the most, of
the caller that holds the most. If it is the asking connection, its request is refused. If not, the largest holder's
connection is cut, and the asking connection goes on. So a client that holds little is never refused because another
client holds much.

Log lines are counted per second: no request gives them back, and each new second starts at 0.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.errors import BodyTooLarge, BrokerError, Overloaded

_MIB: Final = 1024 * 1024


class BudgetKind(enum.StrEnum):
    """The kinds of resource that are counted. The value is the label in the metrics."""

    HEAD_BYTES = "head_bytes"
    BODY_BYTES = "body_bytes"
    ITEMS = "items"
    REPLY_BYTES = "reply_bytes"
    ROWS = "rows"
    WAITING = "waiting"
    LOG_LINES = "log_lines"


class Bounds(NamedTuple):
    """The bounds of one kind. ``doc`` describes the kind."""

    connection: int
    caller: int
    node: int
    doc: str = ""


DEFAULTS: Final[Mapping[BudgetKind, Bounds]] = {
    BudgetKind.HEAD_BYTES: Bounds(
        512 * 1024,
        16 * _MIB,
        32 * _MIB,
        "Bytes of request heads, and of requests that wait behind them.",
    ),
    BudgetKind.BODY_BYTES: Bounds(
        192 * _MIB, 256 * _MIB, 384 * _MIB, "Bytes of bodies, as sent and as inflated."
    ),
    BudgetKind.ITEMS: Bounds(
        2_000_000,
        4_000_000,
        8_000_000,
        "Messages of decoded bodies. Eight pointers of a snapshot count as one message.",
    ),
    BudgetKind.REPLY_BYTES: Bounds(
        160 * _MIB, 320 * _MIB, 512 * _MIB, "Bytes of replies that the client has not read yet."
    ),
    BudgetKind.ROWS: Bounds(
        20_000_000, 40_000_000, 80_000_000, "Rows that current requests have looked at."
    ),
    BudgetKind.WAITING: Bounds(1, 10_000, 10_000, "Requests that wait: long polls, event streams."),
    BudgetKind.LOG_LINES: Bounds(5, 20, 100, "Log lines per second that requests cause."),
}

BY_THE_SECOND: Final = frozenset({BudgetKind.LOG_LINES})


class Cut(ConnectionError):
    """The connection was cut, because it held the most of a resource that ran out."""


class Budgets:
    """All budgets of a node. Use it only in the thread of the event loop."""

    def __init__(self, bounds: Mapping[BudgetKind, Bounds] = DEFAULTS) -> None:
        """Begin with nothing held. A kind that is missing in ``bounds`` has its default bounds."""
        self.bounds: Mapping[BudgetKind, Bounds] = {**DEFAULTS, **bounds}
        self.held: dict[BudgetKind, int] = dict.fromkeys(BudgetKind, 0)
        self.refused: dict[BudgetKind, int] = dict.fromkeys(BudgetKind, 0)
        """How many requests were refused or cut, by the resource that ran out."""
        self.callers: dict[str, Caller] = {}

    def account(self, address: str, cut: Callable[[BudgetKind], None]) -> Account:
        """Return the account of a new connection. ``cut`` must end that connection at once."""
        caller = self.callers.get(address)
        if caller is None:
            caller = self.callers[address] = Caller(address)
        account = Account(self, caller, cut)
        caller.accounts[account] = None
        return account

    def next_second(self) -> None:
        """Reset the kinds that are counted per second."""
        for kind in BY_THE_SECOND:
            self.held[kind] = 0
            for caller in self.callers.values():
                caller.held.pop(kind, None)
                for account in caller.accounts:
                    account.held.pop(kind, None)


class Caller:
    """A client address, with all its connections."""

    __slots__ = ("accounts", "address", "held")

    def __init__(self, address: str) -> None:
        """Begin with nothing held."""
        self.address = address
        self.held: dict[BudgetKind, int] = {}
        self.accounts: dict[Account, None] = {}


class Account:
    """The resources that one connection holds."""

    __slots__ = ("_budgets", "_caller", "_cut", "held", "is_cut")

    def __init__(self, budgets: Budgets, caller: Caller, cut: Callable[[BudgetKind], None]) -> None:
        """Begin with nothing held. Call ``Budgets.account`` to make one."""
        self._budgets = budgets
        self._caller = caller
        self._cut = cut
        self.held: dict[BudgetKind, int] = {}
        self.is_cut = False

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        """Hold ``amount`` more. Call this before the resource is used.

        After an error the connection holds no more than before.

        Raises:
            BodyTooLarge: this connection has reached its bound.
            Overloaded: its caller or the node has reached its bound, and no other connection holds more.
            Cut: this connection was cut to make room for others.
        """
        if self.is_cut:
            raise Cut("The connection was cut: it held the most of a resource that ran out.")
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
        """Hold ``amount`` less. After a cut this does nothing, since nothing is held."""
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
        """Count a log line. Return False if there were too many in this second."""
        try:
            self.take(BudgetKind.LOG_LINES)
        except (BrokerError, Cut):
            return False
        return True

    def close(self) -> None:
        """Give everything back and forget the connection, which has ended."""
        self._cut = _nothing
        for kind, amount in list(self.held.items()):
            self.give(kind, amount)
        self._caller.accounts.pop(self, None)
        if not self._caller.accounts:
            self._budgets.callers.pop(self._caller.address, None)

    def _make_room(self, kind: BudgetKind, amount: int, within: Caller | None) -> None:
        """Cut the largest holder of one caller, or of all callers. Raises Overloaded if this connection is the largest."""
        budgets, mine = self._budgets, self.held.get(kind, 0) + amount
        budgets.refused[kind] += 1
        if within is None:
            callers = budgets.callers.values()
            within = max(callers, key=lambda each: each.held.get(kind, 0) + (each is self._caller))
        largest = max(within.accounts, key=lambda each: each.held.get(kind, 0))
        if kind in BY_THE_SECOND or largest is self or largest.held.get(kind, 0) <= mine:
            raise Overloaded(f"This node has too much to do ({kind}). Try again.")
        largest.cut(kind)

    def cut(self, kind: BudgetKind) -> None:
        """End the connection to make room. Its holdings no longer count."""
        self.is_cut = True
        self._cut(kind)
        for each, amount in list(self.held.items()):
            self.give(each, amount)


class Hold:
    """The share of a connection's account that one request holds. ``close`` gives the rest back."""

    __slots__ = ("_account", "held")

    def __init__(self, account: Account | None) -> None:
        """Begin with nothing held. A request from within the process has no account, and no bounds."""
        self._account = account
        self.held: dict[BudgetKind, int] = {}

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        """Hold more. Raises the errors of ``Account.take``."""
        if self._account is not None:
            self._account.take(kind, amount)
        self.held[kind] = self.held.get(kind, 0) + amount

    def give(self, kind: BudgetKind, amount: int | None = None) -> None:
        """Hold less. With None, give all of this kind back."""
        held = self.held.pop(kind, 0)
        amount = held if amount is None else min(amount, held)
        if amount < held:
            self.held[kind] = held - amount
        if self._account is not None and amount:
            self._account.give(kind, amount)

    def close(self) -> None:
        """Give everything back."""
        for kind in list(self.held):
            self.give(kind)


def _nothing(_kind: BudgetKind) -> None:
    """Do nothing: a connection that has ended can't be cut."""


def _too_much(kind: BudgetKind, bound: int) -> BrokerError:
    if kind in {BudgetKind.HEAD_BYTES, BudgetKind.BODY_BYTES, BudgetKind.ITEMS}:
        return BodyTooLarge(
            f"A request may have at most {bound:,} {kind}. This one has more. Send less at once."
        )
    return Overloaded(
        f"A connection may have at most {bound:,} {kind}. Use several connections, or ask for less at once."
    )
