"""The contract of coordination as tests: a node's guarantees, and its notifications about faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from broker.coordination.ports import Contact, Coordinator, InstanceTaken, Membership
from broker.errors import NoLeader, Unavailable
from broker.testing.virtual_time import within
from tests.kit.contract.coordination import (
    PATIENCE_S,
    CallRecorder,
    CoordinatorHarness,
    ended,
    in_line,
    info,
    is_over,
    listening,
    reaches,
    sees,
)


class _Contract:
    @pytest.fixture
    async def nodes(self, harness: CoordinatorHarness) -> AsyncIterator[list[Coordinator]]:
        """Give three sessions."""
        yield [await harness.node() for _ in range(3)]
        await harness.close()


class MembershipContract(_Contract):
    """Subclass it with a ``harness`` fixture that gives a CoordinatorHarness."""

    async def test_members_see_each_other_come_and_go(self, nodes: list[Coordinator]) -> None:
        first = await nodes[0].join(info(1))
        assert first.members.nodes == {1: info(1)}
        second = await nodes[1].join(info(2))
        assert second.members.nodes == {1: info(1), 2: info(2)}
        await sees(first, 1, 2)
        version = first.members.version
        await second.leave()
        await sees(first, 1)
        assert first.members.version > version

    async def test_a_session_that_has_not_joined_can_list_the_members(
        self, nodes: list[Coordinator]
    ) -> None:
        assert await nodes[0].nodes() == {}
        await nodes[1].join(info(7))
        assert await nodes[0].nodes() == {7: info(7)}

    async def test_the_id_of_a_live_node_is_refused_and_its_holder_named(
        self, nodes: list[Coordinator]
    ) -> None:
        await nodes[0].join(info(7))
        with pytest.raises(InstanceTaken, match="http://node-7:8080") as refused:
            await nodes[1].join(info(7, "other", "http://other:8080"))
        assert refused.value.holder == info(7)
        assert await nodes[1].nodes() == {7: info(7)}
        await nodes[1].join(info(8, "other", "http://other:8080"))

    async def test_members_see_that_a_crashed_node_is_gone(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        first = await nodes[0].join(info(1))
        await nodes[1].join(info(2))
        await sees(first, 1, 2)
        await harness.crash(nodes[1])
        await sees(first, 1)

    async def test_a_node_that_starts_again_has_its_id_at_once(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        await nodes[0].join(info(7, "before"))
        await harness.crash(nodes[0])
        again = await nodes[1].join(info(7, "after"))
        assert again.members.nodes == {7: info(7, "after")}

    async def test_an_earlier_incarnation_that_still_runs_is_told_to_stop(
        self, nodes: list[Coordinator]
    ) -> None:
        earlier = await nodes[0].join(info(7, "before"))
        await nodes[1].join(info(7, "after"))
        reason = await within(PATIENCE_S, earlier.stopped, lambda: str(earlier.members))
        assert "another incarnation" in reason
        assert await nodes[2].nodes() == {7: info(7, "after")}

    async def test_an_incarnation_that_must_stop_does_not_change_its_successors_entry(
        self, nodes: list[Coordinator]
    ) -> None:
        earlier = await nodes[0].join(info(7, "before"))
        later = await nodes[1].join(info(7, "after"))
        # Every node makes these calls when it stops, for any reason.
        await earlier.announce(draining=True)
        assert await nodes[2].nodes() == {7: info(7, "after")}
        await earlier.leave()
        await nodes[0].close()
        assert await nodes[2].nodes() == {7: info(7, "after")}
        assert not later.stopped.done()

    async def test_a_draining_node_says_so(self, nodes: list[Coordinator]) -> None:
        first = await nodes[0].join(info(1))
        second = await nodes[1].join(info(2))
        await sees(first, 1, 2)
        recorder = CallRecorder()
        first.on_change(recorder)
        await second.announce(draining=True)
        await recorder.until(
            lambda: first.members.nodes[2].draining, lambda: str(first.members.nodes)
        )
        assert second.me.draining
        assert not first.members.nodes[1].draining

    async def test_a_member_returns_under_a_new_session(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        first = await nodes[0].join(info(1))
        second = await nodes[1].join(info(2))
        session = first.session
        contact = CallRecorder()
        nodes[0].on_contact(contact)
        await harness.expire(nodes[0])
        await contact.until(lambda: Contact.LOST in contact.arguments, lambda: contact.arguments)
        await _is_member_under_another_session(nodes[2], first, session)
        await sees(second, 1, 2, 250)
        assert second.members.nodes[1] == info(1)
        assert not first.stopped.done()

    async def test_closing_a_session_removes_its_member_at_once(
        self, nodes: list[Coordinator]
    ) -> None:
        first = await nodes[0].join(info(1))
        await nodes[1].join(info(2))
        await sees(first, 1, 2)
        await nodes[1].close()
        await sees(first, 1)


async def _is_member_under_another_session(
    witness: Coordinator, member: Membership, session: int
) -> None:
    """Wait until ``witness`` sees ``member`` announced under a new session."""
    watching = await witness.join(info(250))
    recorder = CallRecorder()
    watching.on_change(recorder)
    member.on_change(recorder)
    await recorder.until(
        lambda: member.session not in (0, session) and member.me.instance in watching.members.nodes,
        lambda: (member.session, session, watching.members),
    )


class LockContract(_Contract):
    """Subclass it with a ``harness`` fixture that gives a CoordinatorHarness."""

    SLOT: ClassVar[str] = "slot/17"

    async def test_a_released_lock_goes_to_the_next_in_the_queue(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        assert lease.valid
        assert lease.resource == self.SLOT
        assert lease.session
        waiting = [await in_line(node, self.SLOT, deadline) for node in nodes[1:]]
        for place, waiter in enumerate(waiting):
            assert not any(later.done() for later in waiting[place:])
            await lease.release()
            assert is_over(lease)
            lease = await within(PATIENCE_S, waiter, lambda: "the lock was not handed over")
            assert lease.valid

    async def test_different_locks_are_independent(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        names = ["slot/1", "slot/10", "pin/ns:a-topic", "transactions", "rowlog/orders"]
        leases = [await node.acquire(name, deadline) for node in nodes[:1] for name in names]
        leases += [await nodes[1].acquire("pin/ns:other", deadline)]
        assert [await lease.verify() for lease in leases] == [True] * 6

    async def test_a_waiter_that_gave_up_does_not_block_the_queue(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        with pytest.raises(NoLeader, match="slot/17"):
            await nodes[1].acquire(self.SLOT, harness.monotonic() + 0.05)
        cancelled = await in_line(nodes[1], self.SLOT, deadline)
        last = await in_line(nodes[2], self.SLOT, deadline)
        cancelled.cancel()
        await lease.release()
        assert (await within(PATIENCE_S, last, lambda: "still in line")).valid

    async def test_a_lease_is_never_used_again(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        assert await lease.verify()
        await lease.release()
        assert not await lease.verify()
        again = await nodes[0].acquire(self.SLOT, deadline)
        assert again is not lease
        assert is_over(lease)
        assert not await lease.verify()
        assert await again.verify()

    async def test_an_expired_session_ends_its_leases(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        waiter = await in_line(nodes[1], self.SLOT, deadline)
        await harness.expire(nodes[0])
        assert (await within(PATIENCE_S, waiter, lambda: "the lock was not freed")).valid
        await ended(lease)
        await reaches(nodes[0], Contact.CONNECTED)
        assert not await lease.verify()
        await waiter.result().release()
        again = await nodes[0].acquire(self.SLOT, deadline)
        assert again.session != lease.session
        assert await again.verify()

    async def test_a_queued_waiter_queues_again_under_a_new_session(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        waiter = await in_line(nodes[1], self.SLOT, deadline)
        await harness.expire(nodes[1])
        await reaches(nodes[1], Contact.CONNECTED)
        await lease.release()
        assert await (await within(PATIENCE_S, waiter, lambda: "not in line")).verify()

    async def test_a_crashed_holders_lock_is_free_once_its_session_ends(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        await nodes[0].acquire(self.SLOT, deadline)
        waiter = await in_line(nodes[1], self.SLOT, deadline)
        await harness.crash(nodes[0])
        assert (await within(PATIENCE_S, waiter, lambda: "the lock was not freed")).valid

    async def test_closing_hands_over_at_once(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        waiter = await in_line(nodes[1], self.SLOT, deadline)
        await nodes[0].close()
        assert lease.lost.done()
        assert (await within(PATIENCE_S, waiter, lambda: "the lock was not freed")).valid


class FaultContract(_Contract):
    """Subclass it with a ``harness`` fixture that gives a CoordinatorHarness."""

    SLOT: ClassVar[str] = "slot/17"

    async def test_an_outage_ends_nothing_and_allows_nothing_new(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        member = await nodes[0].join(info(1))
        lease = await nodes[0].acquire(self.SLOT, harness.monotonic() + PATIENCE_S)
        session = member.session
        await harness.outage()
        for node in nodes:
            await reaches(node, Contact.SUSPENDED)
        assert lease.valid
        assert member.members.nodes == {1: info(1)}
        with pytest.raises(Unavailable):
            await nodes[1].nodes()
        with pytest.raises(Unavailable):
            await nodes[1].join(info(2))
        with pytest.raises(Unavailable):
            await lease.verify()
        with pytest.raises(NoLeader):
            await nodes[1].acquire("slot/18", harness.monotonic() + 0.05)
        await harness.recover()
        for node in nodes:
            await reaches(node, Contact.CONNECTED)
        assert await lease.verify()
        assert lease.session == session
        assert await nodes[1].nodes() == {1: info(1)}

    async def test_a_lease_released_in_an_outage_is_free_after_it(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        deadline = harness.monotonic() + PATIENCE_S
        lease = await nodes[0].acquire(self.SLOT, deadline)
        waiter = await in_line(nodes[1], self.SLOT, deadline)
        member = await nodes[0].join(info(1))
        await harness.outage()
        await reaches(nodes[0], Contact.SUSPENDED)
        await lease.release()
        await member.announce(draining=True)
        await member.leave()
        await harness.recover()
        assert (await within(PATIENCE_S, waiter, lambda: "the lock was not freed")).valid
        await reaches(nodes[2], Contact.CONNECTED)
        witness = await nodes[2].join(info(2))
        await sees(witness, 2)

    async def test_wiped_data_is_made_again(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        first = await nodes[0].join(info(1))
        second = await nodes[1].join(info(2))
        lease = await nodes[0].acquire(self.SLOT, harness.monotonic() + PATIENCE_S)
        recorder = await listening(nodes[1], "placement")
        await harness.wipe()
        await ended(lease)
        for node in nodes:
            await reaches(node, Contact.CONNECTED)
        witness = await nodes[2].join(info(3))
        for member in (witness, first, second):
            await sees(member, 1, 2, 3)
        again = await nodes[0].acquire(self.SLOT, harness.monotonic() + PATIENCE_S)
        assert await again.verify()
        assert not await lease.verify()
        count = recorder.count
        await nodes[0].hint("placement")
        await recorder.at_least(count + 1)

    async def test_a_hint_reaches_all_that_listen(self, nodes: list[Coordinator]) -> None:
        recorders = [await listening(node, "placement") for node in nodes]
        other = await listening(nodes[0], "topics")
        for count in (2, 3):
            await nodes[1].hint("placement")
            for recorder in recorders:
                await recorder.at_least(count)
        assert other.count == 1

    async def test_a_hint_in_an_outage_is_delivered_after_it(
        self, harness: CoordinatorHarness, nodes: list[Coordinator]
    ) -> None:
        recorder = await listening(nodes[0], "placement")
        await harness.outage()
        await reaches(nodes[1], Contact.SUSPENDED)
        await nodes[1].hint("placement")
        await harness.recover()
        await recorder.at_least(2)
