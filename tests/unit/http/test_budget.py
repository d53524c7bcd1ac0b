"""Budgets: when one is full, its largest holder is cut, never the newcomer."""

from __future__ import annotations

import pytest

from broker.config.sections import Config
from broker.errors import BodyTooLarge, Overloaded, QuotaExceeded
from broker.http.budget import (
    DEFAULTS,
    Account,
    Bounds,
    BudgetKind,
    Budgets,
    Cut,
    Usage,
    caller_at,
)
from broker.topics.streams import COPIES

BODY = BudgetKind.BODY_BYTES


class Client:
    """A connection that records which budgets cut it."""

    def __init__(self, budgets: Budgets, address: str) -> None:
        self.cut_by: list[BudgetKind] = []
        self.account: Account = budgets.account(address, self.cut_by.append)


@pytest.fixture
def budgets() -> Budgets:
    return Budgets({BODY: Bounds(60, 80, 100)})


def test_one_connection_has_its_own_bound(budgets: Budgets) -> None:
    client = Client(budgets, "a")
    client.account.take(BODY, 60)
    with pytest.raises(BodyTooLarge, match="60"):
        client.account.take(BODY, 1)
    assert budgets.used[BODY] == 60
    assert budgets.refused[BODY] == 1


def test_the_largest_connection_of_a_full_caller_is_cut(budgets: Budgets) -> None:
    large, small = Client(budgets, "a"), Client(budgets, "a")
    large.account.take(BODY, 60)
    small.account.take(BODY, 20)
    small.account.take(BODY, 10)
    assert large.cut_by == [BODY]
    assert small.cut_by == []
    assert budgets.used[BODY] == 30
    with pytest.raises(Cut):
        large.account.take(BODY, 1)


def test_the_largest_holder_is_refused_when_it_asks_itself(budgets: Budgets) -> None:
    large, small = Client(budgets, "a"), Client(budgets, "a")
    small.account.take(BODY, 30)
    large.account.take(BODY, 45)
    with pytest.raises(Overloaded, match="body_bytes"):
        large.account.take(BODY, 10)
    assert (small.cut_by, large.cut_by) == ([], [])
    assert budgets.used[BODY] == 75


def test_on_a_full_node_the_caller_that_holds_most_is_cut(budgets: Budgets) -> None:
    attackers = [Client(budgets, "attacker") for _ in range(2)]
    for attacker in attackers:
        attacker.account.take(BODY, 40)
    others = [Client(budgets, f"other {number}") for number in range(3)]
    for other in others:
        other.account.take(BODY, 15)
    assert [each.cut_by for each in others] == [[], [], []]
    assert sorted(len(each.cut_by) for each in attackers) == [0, 1]
    assert budgets.used[BODY] == 40 + 45


def test_a_caller_of_many_small_holders_gives_way_to_a_larger_request(budgets: Budgets) -> None:
    stalled = [Client(budgets, f"attacker {number % 2}") for number in range(50)]
    for each in stalled:
        each.account.take(BODY, 2)
    third = Client(budgets, "third")
    third.account.take(BODY, 25)
    assert third.cut_by == []
    assert sum(len(each.cut_by) for each in stalled) == 13
    assert budgets.used[BODY] == 2 * 37 + 25


def test_the_largest_caller_is_refused_although_others_hold_in_one_connection() -> None:
    budgets = Budgets({BODY: Bounds(60, 80, 100)})
    one = Client(budgets, "one")
    one.account.take(BODY, 40)
    many = [Client(budgets, "many") for _ in range(12)]
    for each in many:
        each.account.take(BODY, 5)
    with pytest.raises(Overloaded):
        many[0].account.take(BODY, 5)
    assert one.cut_by == []


def test_places_to_wait_are_freed_for_another_caller() -> None:
    waiting = BudgetKind.WAITING
    budgets = Budgets({waiting: Bounds(1, 4, 4)})
    large = [Client(budgets, "large") for _ in range(4)]
    for each in large:
        each.account.take(waiting)
    others = [Client(budgets, f"other {number}") for number in range(3)]
    for each in others:
        each.account.take(waiting)
    assert [each.cut_by for each in large] == [[waiting], [waiting], [waiting], []]
    with pytest.raises(Overloaded):
        Client(budgets, "large").account.take(waiting)


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_a_caller_of_ipv6_is_a_network(address: str, caller: str) -> None:
    assert caller_at(address) == caller


def test_addresses_of_one_network_share_a_bound(budgets: Budgets) -> None:
    for number in range(4):
        Client(budgets, f"2001:db8::{number}").account.take(BODY, 20)
    with pytest.raises(Overloaded):
        Client(budgets, "2001:db8::9").account.take(BODY, 20)


def test_a_closed_connection_holds_nothing(budgets: Budgets) -> None:
    client = Client(budgets, "a")
    client.account.take(BODY, 50)
    client.account.close()
    assert budgets.used[BODY] == 0
    assert budgets.callers == {}


def test_a_request_gives_back_its_holdings(budgets: Budgets) -> None:
    client = Client(budgets, "a")
    usage = Usage(client.account)
    usage.take(BODY, 50)
    usage.take(BudgetKind.ITEMS, 7)
    usage.give(BODY)
    assert budgets.used[BODY] == 0
    usage.close()
    assert budgets.used[BudgetKind.ITEMS] == 0


def test_lines_of_the_log_are_counted_by_the_second(budgets: Budgets) -> None:
    client, other = Client(budgets, "a"), Client(budgets, "b")
    bound = budgets.bounds[BudgetKind.LOG_LINES].connection
    assert [client.account.may_log() for _ in range(bound + 1)] == [True] * bound + [False]
    assert other.account.may_log()
    assert client.cut_by == []
    budgets.next_second()
    assert client.account.may_log()


def test_one_connection_may_read_the_largest_message_in_columns() -> None:
    largest = COPIES * Config().limits.body_inflated_bytes_max
    assert DEFAULTS[BudgetKind.REPLY_BYTES].connection >= largest


# --- Principals -----------------------------------------------------------------------------------


class CountingQuota:
    """A quota that allows so much of each kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used: dict[BudgetKind, int] = {}

    def take(self, kind: BudgetKind, amount: int) -> None:
        if self.used.get(kind, 0) + amount > self.most:
            raise QuotaExceeded(f"no more {kind}")
        self.used[kind] = self.used.get(kind, 0) + amount

    def give(self, kind: BudgetKind, amount: int) -> None:
        self.used[kind] -= amount


def test_connections_of_one_principal_share_its_bound_wherever_they_come_from(
    budgets: Budgets,
) -> None:
    first, second, other = Client(budgets, "a"), Client(budgets, "b"), Client(budgets, "b")
    for client in first, second:
        client.account.bill("alice")
    first.account.take(BODY, 50)
    second.account.take(BODY, 30)
    assert budgets.callers["@alice"].used[BODY] == 80
    other.account.take(BODY, 20)  # Another caller at the same address.
    with pytest.raises(Overloaded):
        first.account.take(BODY, 10)


def test_what_is_used_moves_to_the_principal_and_back(budgets: Budgets) -> None:
    client = Client(budgets, "a")
    client.account.take(BODY, 10)
    for principal, name in (("alice", "@alice"), ("bob", "@bob"), ("", "a"), ("a", "@a")):
        client.account.bill(principal)
        assert client.account.caller == name
        assert {each.name: each.used[BODY] for each in budgets.callers.values()} == {name: 10}
    assert budgets.used[BODY] == 10
    client.account.close()
    assert budgets.callers == {}
    assert budgets.used[BODY] == 0


def test_an_ended_connection_is_billed_to_nobody(budgets: Budgets) -> None:
    client = Client(budgets, "a")
    client.account.close()
    client.account.bill("alice", CountingQuota(1))
    assert budgets.callers == {}


def test_a_quota_counts_what_its_connections_use_until_they_end(budgets: Budgets) -> None:
    quota, clients = CountingQuota(2), [Client(budgets, str(n)) for n in range(3)]
    for client in clients:
        client.account.take(BudgetKind.CONNECTIONS)
    for client in clients[:2]:
        client.account.bill("alice", quota)
    with pytest.raises(QuotaExceeded):
        clients[2].account.bill("alice", quota)
    clients[2].account.close()
    clients[0].account.take(BudgetKind.WAITING)
    clients[0].account.cut(BudgetKind.WAITING)
    assert quota.used == {BudgetKind.CONNECTIONS: 1, BudgetKind.WAITING: 0}
    clients[1].account.bill("bob")
    assert quota.used[BudgetKind.CONNECTIONS] == 0


def test_a_quota_is_given_back_what_a_bound_refuses(budgets: Budgets) -> None:
    quota, client = CountingQuota(100), Client(budgets, "a")
    client.account.bill("alice", quota)
    with pytest.raises(BodyTooLarge):
        client.account.take(BODY, 61)
    with pytest.raises(QuotaExceeded):
        client.account.take(BudgetKind.ROWS, 101)
    assert not any(quota.used.values())
    assert budgets.used[BudgetKind.ROWS] == 0
