"""Budgets: a node counts the memory and the work of requests before it spends them.

Each kind of resource has three bounds: for a connection, for a caller, and for the node. A caller is a principal, once a request
has told its credentials; until then it is an address (of IPv6 a network of 64 bits, since its owner has any number of
addresses). A caller has all its connections. A request takes from all three at once, and gives back to all three::

    connection ──┐
    connection ──┴─▶ caller ──┐
    connection ────▶ caller ──┴─▶ node

If a connection goes over its own bound, its request is refused, because it is too large. When the bound of the node is
reached, the caller that holds the most must make room: its largest connections are cut, and the asking connection goes
on. When the bound of a caller is reached, or the asking caller holds the most itself, its own largest connection must make
room; if that is the asking connection, its request is refused. So a client that holds little is never refused because
another client holds much, in one connection or in many.

Log lines are counted per second: no request gives them back, and each new second starts at 0.

A connection may have a ``Quota``, too: that of the principal for which it sends requests. The quota is asked before the bounds,
and refuses by itself. It counts connections, requests and waits of clients alone, never those that other nodes pass on.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from broker.errors import BodyTooLarge, BrokerError, Overloaded

T = TypeVar("T")

_MIB: Final = 1024 * 1024


class BudgetKind(enum.StrEnum):
    """The kinds of resource that are counted. The value is the label in the metrics."""

    HEAD_BYTES = "head_bytes"
    BODY_BYTES = "body_bytes"
    ITEMS = "items"
    REPLY_BYTES = "reply_bytes"
    ROWS = "rows"
    WAITING = "waiting"
    CONNECTIONS = "connections"
    IN_FLIGHT = "in_flight"
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
        256 * _MIB, 384 * _MIB, 512 * _MIB, "Bytes of bodies: as sent, as inflated, and as decoded."
    ),
    BudgetKind.ITEMS: Bounds(
        2_000_000,
        4_000_000,
        8_000_000,
        "Messages of decoded bodies. Eight pointers of a snapshot count as one message.",
    ),
    BudgetKind.REPLY_BYTES: Bounds(
        288 * _MIB, 320 * _MIB, 512 * _MIB, "Bytes of replies that the client has not read yet."
    ),
    BudgetKind.ROWS: Bounds(
        20_000_000, 40_000_000, 80_000_000, "Rows that current requests have looked at."
    ),
    BudgetKind.WAITING: Bounds(1, 7_500, 10_000, "Requests that wait: long polls, event streams."),
    BudgetKind.CONNECTIONS: Bounds(1, 16_384, 16_384, "Open connections."),
    BudgetKind.IN_FLIGHT: Bounds(
        1, 16_384, 16_384, "Requests of principals that have a quota of them."
    ),
    BudgetKind.LOG_LINES: Bounds(5, 20, 100, "Log lines per second that requests cause."),
}

BY_THE_SECOND: Final = frozenset({BudgetKind.LOG_LINES})
CUTS_AT_ONCE: Final = 256
"""The most connections that are cut for one request: more would block the event loop for too long."""
NETWORK_BITS: Final = 64
"""The length of the prefix that one owner of IPv6 addresses has."""


PRINCIPAL: Final = "@"
"""The beginning of the name of a caller that is a principal. No address has it."""


class Quota(Protocol):
    """Counts what the connections of one principal use. It ignores the kinds that it does not bound."""

    def take(self, kind: BudgetKind, amount: int) -> None:
        """Count more. Raises QuotaExceeded; then nothing was counted."""

    def give(self, kind: BudgetKind, amount: int) -> None:
        """Count less."""


class Cut(ConnectionError):
    """The connection was cut, because it held the most of a resource that ran out."""


class Budgets:
    """All budgets of a node. Use it only in the thread of the event loop."""

    def __init__(self, bounds: Mapping[BudgetKind, Bounds] = DEFAULTS) -> None:
        """Begin at zero. A kind that is missing in ``bounds`` has its default bounds."""
        self.bounds: Mapping[BudgetKind, Bounds] = {**DEFAULTS, **bounds}
        self.used: dict[BudgetKind, int] = dict.fromkeys(BudgetKind, 0)
        self.refused: dict[BudgetKind, int] = dict.fromkeys(BudgetKind, 0)
        """How many requests were refused or cut, by the resource that ran out."""
        self.callers: dict[str, Caller] = {}

    def account(self, address: str, cut: Callable[[BudgetKind], None]) -> Account:
        """Return the account of a new connection. ``cut`` must end that connection at once."""
        caller = self.caller(caller_at(address))
        account = Account(self, caller, cut)
        caller.accounts[account] = None
        return account

    def caller(self, name: str) -> Caller:
        """Return the caller with a name. Once it has no connection, it is forgotten."""
        caller = self.callers.get(name)
        if caller is None:
            caller = self.callers[name] = Caller(name)
        return caller

    def next_second(self) -> None:
        """Reset the kinds that are counted per second."""
        for kind in BY_THE_SECOND:
            self.used[kind] = 0
            for caller in self.callers.values():
                caller.used.pop(kind, None)
                for account in caller.accounts:
                    account.used.pop(kind, None)


@dataclass(slots=True, eq=False, repr=False)
class Caller:
    """A principal, or a client address, with all its connections."""

    name: str
    used: dict[BudgetKind, int] = field(default_factory=dict)
    accounts: dict[Account, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """The resources that one connection uses. Call ``Budgets.account`` to make one."""

    _budgets: Budgets
    _caller: Caller
    _cut: Callable[[BudgetKind], None]
    used: dict[BudgetKind, int] = field(default_factory=dict)
    is_cut: bool = False
    _quota: Quota | None = field(default=None, init=False)
    _address: str = field(default="", init=False)
    """The name of the caller before the first principal; empty: there was none yet."""
    _end: asyncio.Future[None] | None = field(default=None, init=False)

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        """Count ``amount`` more. Call this before the resource is used.

        After an error the connection uses no more than before.

        Raises:
            QuotaExceeded: the quota of its principal is used up.
            BodyTooLarge: this connection has reached its bound.
            Overloaded: its caller or the node has reached its bound, and no other connection holds more.
            Cut: this connection was cut to make room for others.
        """
        if self.is_cut:
            raise Cut("The connection was cut: it held the most of a resource that ran out.")
        if self._quota is None:
            self._take(kind, amount)
            return
        self._quota.take(kind, amount)
        try:
            self._take(kind, amount)
        except (BrokerError, Cut):
            self._quota.give(kind, amount)
            raise

    def _take(self, kind: BudgetKind, amount: int) -> None:
        used, caller, budgets = self.used.get(kind, 0), self._caller, self._budgets
        bounds = budgets.bounds[kind]
        if used + amount > bounds.connection:
            budgets.refused[kind] += 1
            raise _too_much(kind, bounds.connection)
        if caller.used.get(kind, 0) + amount > bounds.caller:
            own = self._own_victims(kind, amount)
            self._make_room(kind, own, lambda: caller.used.get(kind, 0) + amount <= bounds.caller)
        if budgets.used[kind] + amount > bounds.node:
            victims = self._victims(kind, amount)
            self._make_room(kind, victims, lambda: budgets.used[kind] + amount <= bounds.node)
        self.used[kind] = used + amount
        caller.used[kind] = caller.used.get(kind, 0) + amount
        budgets.used[kind] += amount

    def give(self, kind: BudgetKind, amount: int = 1) -> None:
        """Count ``amount`` less. After a cut this does nothing, since all is given back."""
        used = self.used.get(kind, 0)
        amount = min(amount, used)
        if not amount:
            return
        if amount == used:
            del self.used[kind]
        else:
            self.used[kind] = used - amount
        self._caller.used[kind] -= amount
        self._budgets.used[kind] -= amount
        if self._quota is not None:
            self._quota.give(kind, amount)

    @property
    def caller(self) -> str:
        """The name of the caller."""
        return self._caller.name

    def bill(self, principal: str, quota: Quota | None = None) -> None:
        """Count all that this connection uses for a principal from now on; empty: for its address again.

        Call it at the beginning of a request. ``quota`` is the principal's, if the connection is one of its own.

        Raises:
            QuotaExceeded: the principal has too many connections. The connection is billed to it without a quota.
        """
        if self._cut is _nothing or self.is_cut:
            return
        if quota is not self._quota:
            self._change_quota(None)
        self._move(PRINCIPAL + principal if principal else self._address)
        if quota is not self._quota:
            self._change_quota(quota)

    def _change_quota(self, quota: Quota | None) -> None:
        connections = self.used.get(BudgetKind.CONNECTIONS, 0)
        if self._quota is not None:
            self._quota.give(BudgetKind.CONNECTIONS, connections)
            self._quota = None
        if quota is not None:
            quota.take(BudgetKind.CONNECTIONS, connections)
            self._quota = quota

    def _move(self, name: str) -> None:
        """Count all that this connection uses for another caller. The next call of ``take`` looks at its bounds."""
        before = self._caller
        if not name or name == before.name:
            return
        self._address = self._address or before.name
        self._caller = after = self._budgets.caller(name)
        for kind, amount in self.used.items():
            before.used[kind] -= amount
            after.used[kind] = after.used.get(kind, 0) + amount
        after.accounts[self] = None
        self._leave(before)

    def _leave(self, caller: Caller) -> None:
        caller.accounts.pop(self, None)
        if not caller.accounts:
            self._budgets.callers.pop(caller.name, None)

    def may_log(self) -> bool:
        """Count a log line. Return False if there were too many in this second."""
        try:
            self.take(BudgetKind.LOG_LINES)
        except (BrokerError, Cut):
            return False
        return True

    def cut_by(self, cut: Callable[[BudgetKind], None]) -> None:
        """Use another function from now on to cut the connection."""
        self._cut = cut

    @property
    def end(self) -> asyncio.Future[None]:
        """A future that is done when the connection has ended, or was cut: what it used does not count any more."""
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
            if self.is_cut or self._cut is _nothing:
                self._end.set_result(None)
        return self._end

    def _told_end(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def close(self) -> None:
        """Give everything back and forget the connection, which has ended."""
        self._cut = _nothing
        self._told_end()
        for kind, amount in list(self.used.items()):
            self.give(kind, amount)
        self._leave(self._caller)

    def _make_room(
        self, kind: BudgetKind, victims: Iterator[Account], fits: Callable[[], bool]
    ) -> None:
        """Cut connections until the asked amount fits. Raises Overloaded if it does not, Cut if this one was cut, too."""
        self._budgets.refused[kind] += 1
        if kind not in BY_THE_SECOND:
            for each in islice(victims, CUTS_AT_ONCE):
                each.cut(kind)
                if fits():
                    return
        raise Overloaded(f"This node has too much to do ({kind}). Try again.")

    def _victims(self, kind: BudgetKind, amount: int) -> Iterator[Account]:
        """Yield the connections that make room at the node: first those of callers that hold more than this one."""
        mine = self._caller.used.get(kind, 0) + amount
        while True:
            callers = self._budgets.callers.values()
            largest = max(callers, key=lambda each: each.used.get(kind, 0))
            if largest is self._caller or largest.used.get(kind, 0) <= mine:
                break
            for each in nlargest(CUTS_AT_ONCE, largest.accounts, lambda one: one.used.get(kind, 0)):
                if largest.used.get(kind, 0) > mine:
                    yield each
        yield from self._own_victims(kind, amount)

    def _own_victims(self, kind: BudgetKind, amount: int) -> Iterator[Account]:
        """Yield the connections of this caller that hold more than this one asks for, largest first."""
        mine = self.used.get(kind, 0) + amount
        for each in nlargest(
            CUTS_AT_ONCE, self._caller.accounts, lambda one: one.used.get(kind, 0)
        ):
            if each is self or each.used.get(kind, 0) <= mine:
                return
            yield each

    def cut(self, kind: BudgetKind) -> None:
        """End the connection to make room. Its resources no longer count."""
        self.is_cut = True
        self._told_end()
        self._cut(kind)
        for each, amount in list(self.used.items()):
            self.give(each, amount)


@dataclass(slots=True, eq=False, repr=False)
class Usage:
    """The share of a connection's account that one request uses. ``close`` gives the rest back.

    A request from within the process has no account, and no bounds.
    """

    _account: Account | None
    used: dict[BudgetKind, int] = field(default_factory=dict)

    @property
    def caller(self) -> str:
        """The name of the request's caller; empty within the process."""
        return "" if self._account is None else self._account.caller

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        """Count more. Raises the errors of ``Account.take``."""
        if self._account is not None:
            self._account.take(kind, amount)
        self.used[kind] = self.used.get(kind, 0) + amount

    def give(self, kind: BudgetKind, amount: int | None = None) -> None:
        """Count less. With None, give all of this kind back."""
        used = self.used.pop(kind, 0)
        amount = used if amount is None else min(amount, used)
        if amount < used:
            self.used[kind] = used - amount
        if self._account is not None and amount:
            self._account.give(kind, amount)

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work. If the connection ends meanwhile, cancel it.

        Raises:
            Cut, ConnectionError: the connection has ended.
        """
        if self._account is None:
            return await work
        task = asyncio.create_task(work)
        ends: set[asyncio.Future[Any]] = {task, self._account.end}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if not task.cancelled():
            return task.result()
        self.take(BudgetKind.BODY_BYTES, 0)
        raise ConnectionResetError("The connection ended before its request was read.")

    def may_log(self) -> bool:
        """Count a log line that this request causes. Return False if there were too many in this second."""
        return self._account is None or self._account.may_log()

    def close(self) -> None:
        """Give everything back."""
        for kind in list(self.used):
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


def caller_at(address: str) -> str:
    """Return the name of the caller at an address: the address, or the network of an address of IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    network = int(parsed) >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS)
    return f"{ipaddress.IPv6Address(network)}/{NETWORK_BITS}"
