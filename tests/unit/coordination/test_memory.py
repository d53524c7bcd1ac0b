"""Faults of simulated coordination, in virtual time."""

import asyncio
import random

import pytest

from broker.coordination.memory import SESSION_TIMEOUT_S, MemoryCoordination
from broker.coordination.ports import Contact
from broker.errors import NoLeader, Unavailable
from broker.testing.virtual_time import VirtualClock, pass_time, simulate, within
from tests.kit.contract.coordination import CallRecorder, info, listening, sees

SLOT = "slot/17"


def in_world(scenario):
    """Run ``scenario(world)`` on a virtual loop."""
    return simulate(lambda loop: scenario(MemoryCoordination(VirtualClock(loop))))


def test_the_session_of_a_suspended_node_ends_and_the_node_learns_late():
    async def scenario(world):
        first, second = world.session(), world.session()
        lease = await first.acquire(SLOT, 100.0)
        world.suspend(first)
        assert first.contact is Contact.SUSPENDED
        await second.acquire(SLOT, 100.0)
        assert world.clock.monotonic() == pytest.approx(4.0)
        assert lease.valid, "the first node is cut off, and does not know"
        world.resume(first)
        assert not lease.valid
        assert first.contact is Contact.CONNECTED

    in_world(scenario)


def test_a_session_survives_a_short_loss_of_contact():
    async def scenario(world):
        first, second = world.session(), world.session()
        lease = await first.acquire(SLOT, 100.0)
        world.suspend(first)
        await pass_time(3.9)
        world.resume(first)
        await pass_time(100.0)
        assert await lease.verify()
        with pytest.raises(NoLeader):
            await second.acquire(SLOT, 110.0)

    in_world(scenario)


@pytest.mark.parametrize("ends_after_s", [0.5, 60.0])
def test_sessions_end_early_and_late(ends_after_s):
    async def scenario(world):
        first, second = world.session(), world.session()
        await first.acquire(SLOT, 100.0)
        world.suspend(first, session_ends_after_s=ends_after_s)
        await second.acquire(SLOT, 100.0)
        assert world.clock.monotonic() == pytest.approx(ends_after_s)

    in_world(scenario)


def test_a_node_may_learn_late_that_its_session_is_over():
    async def scenario(world):
        first, second = world.session(), world.session()
        lease = await first.acquire(SLOT, 100.0)
        world.expire(first, noticed_after_s=1.0)
        other = await second.acquire(SLOT, 100.0)
        assert other.valid
        assert lease.valid
        assert first.contact is Contact.CONNECTED
        await lease.lost
        assert world.clock.monotonic() == pytest.approx(1.0)

    in_world(scenario)


def test_a_request_shows_at_once_that_the_session_is_over():
    async def scenario(world):
        first = world.session()
        lease = await first.acquire(SLOT, 100.0)
        recorder = CallRecorder()
        first.on_contact(recorder)
        world.expire(first, noticed_after_s=50.0)
        again = await first.acquire(SLOT, 10.0)
        assert again.valid
        assert not lease.valid
        assert recorder.arguments == [Contact.SUSPENDED, Contact.LOST, Contact.CONNECTED]

    in_world(scenario)


def test_a_crashed_node_is_a_member_until_its_session_ends():
    async def scenario(world):
        first, second = world.session(), world.session()
        await first.join(info(1))
        member = await second.join(info(2))
        await world.crash(first)
        assert set(member.members.nodes) == {1, 2}
        await sees(member, 2)
        assert world.clock.monotonic() == pytest.approx(4.0)

    in_world(scenario)


def test_a_watch_can_be_late():
    async def scenario(world):
        world.notification_delay_s = 0.7
        first, second = world.session(), world.session()
        member = await first.join(info(1))
        await second.join(info(2))
        assert set(member.members.nodes) == {1}
        await sees(member, 1, 2)
        assert world.clock.monotonic() == pytest.approx(0.7)

    in_world(scenario)


def test_a_lost_answer_leaves_no_lock_behind():
    """Contact breaks after the servers made the lock's node, and before the answer arrives."""

    async def scenario(world):
        world.delay_s = 1.0
        first, second = world.session(), world.session()
        await (await first.acquire(SLOT, 100.0)).release()
        waiting = first.acquire(SLOT, world.clock.monotonic() + 3.0)
        cut = second.acquire("slot/1", world.clock.monotonic() + 1.5)  # Lets 1.5 s pass.
        task = _task(waiting)
        with pytest.raises(NoLeader):
            await cut
        world.suspend(first)
        world.resume(first)
        with pytest.raises(NoLeader):
            await task
        lease = await within(60.0, second.acquire(SLOT, 1000.0), lambda: "blocked")
        assert lease.valid

    in_world(scenario)


def test_an_attempt_finds_the_node_of_a_lost_answer():
    async def scenario(world):
        world.delay_s = 1.0
        first = world.session()
        await (await first.acquire(SLOT, 100.0)).release()
        task = _task(first.acquire(SLOT, 100.0))
        await pass_time(1.5)
        world.suspend(first)
        world.resume(first)
        lease = await task
        assert await lease.verify()
        assert len(world.nodes.at("/broker/locks/slot/17").children) == 1

    in_world(scenario)


def test_a_hint_without_contact_is_sent_when_contact_is_back():
    async def scenario(world):
        first, second = world.session(), world.session()
        recorder = await listening(second, "placement")
        world.suspend(first)
        await first.hint("placement")
        await pass_time(10.0)
        assert recorder.count == 1
        world.resume(first)
        await recorder.at_least(2)

    in_world(scenario)


def test_members_count_each_other_after_a_wipe_until_they_are_back():
    async def scenario(world):
        world.delay_s = 0.01
        nodes = [world.session() for _ in range(3)]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        await sees(members[0], 0, 1, 2)
        seen = []
        for member in members:
            await sees(member, 0, 1, 2)
            member.on_change(lambda member=member: seen.append(set(member.members.nodes)))
        sessions = [member.session for member in members]
        world.wipe()
        await pass_time(10.0)
        assert seen
        assert all(nodes == {0, 1, 2} for nodes in seen)
        assert not set(sessions) & {member.session for member in members}

    in_world(scenario)


@pytest.mark.parametrize("later_ms", range(0, 80, 5))
def test_a_member_that_announces_something_stays_a_member(later_ms):
    """A second node announces something while the others read what the first one announced."""

    async def scenario(world):
        world.delay_s = 0.01
        nodes = [world.session() for _ in range(4)]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        await sees(members[3], 0, 1, 2, 3)
        seen = []
        members[3].on_change(lambda: seen.append(set(members[3].members.nodes)))
        first = _task(members[0].announce(draining=True))
        await pass_time(later_ms / 1000)
        await asyncio.gather(first, members[1].announce(draining=True))
        await pass_time(1.0)
        assert [members[3].members.nodes[number].draining for number in (0, 1)] == [True, True]
        assert all(nodes == {0, 1, 2, 3} for nodes in seen)

    in_world(scenario)


@pytest.mark.parametrize("later_ms", range(0, 80, 5))
def test_members_stay_if_contact_returns_during_a_read(later_ms):
    async def scenario(world):
        world.delay_s = 0.01
        nodes = [world.session() for _ in range(4)]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        await sees(members[3], 0, 1, 2, 3)
        seen = []
        members[3].on_change(lambda: seen.append(set(members[3].members.nodes)))
        announcing = _task(members[0].announce(draining=True))
        await pass_time(later_ms / 1000)
        members[3].look_again()  # As after a silence that the session has survived.
        await announcing
        await pass_time(1.0)
        assert members[3].members.nodes[0].draining
        assert all(nodes == {0, 1, 2, 3} for nodes in seen)

    in_world(scenario)


def test_a_member_that_does_not_return_after_a_wipe_is_gone():
    async def scenario(world):
        nodes = [world.session() for _ in range(2)]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        await sees(members[0], 0, 1)
        await world.crash(nodes[1])
        world.wipe()
        await sees(members[0], 0)
        assert world.clock.monotonic() < 4.0

    in_world(scenario)


def test_a_member_that_does_not_return_is_gone_even_if_the_loop_wakes_early():
    async def scenario(loop):
        world = MemoryCoordination(HastyClock(loop))
        nodes = [world.session() for _ in range(2)]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        await sees(members[0], 0, 1)
        await world.crash(nodes[1])
        world.wipe()
        await sees(members[0], 0)

    simulate(scenario)


class HastyClock(VirtualClock):
    """Ends a sleep a little early, as an event loop that counts in milliseconds does."""

    async def sleep(self, seconds):
        await super().sleep(seconds - 0.0005 if seconds > 0.001 else seconds)


def test_an_announcement_without_contact_arrives_when_contact_is_back():
    async def scenario(world):
        nodes = [world.session() for _ in range(2)]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        await sees(members[0], 0, 1)
        recorder = CallRecorder()
        members[0].on_change(recorder)
        world.suspend(nodes[1])
        await members[1].announce(draining=True)
        world.resume(nodes[1])
        await recorder.until(
            lambda: members[0].members.nodes[1].draining, lambda: members[0].members
        )
        assert not members[0].members.nodes[0].draining

    in_world(scenario)


@pytest.mark.parametrize("cut_after_s", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5])
def test_a_node_that_lost_contact_while_joining_can_join_again(cut_after_s):
    async def scenario(world):
        world.delay_s = 1.0
        first, second = world.session(), world.session()
        joining = _task(first.join(info(1)))
        await pass_time(cut_after_s)
        world.suspend(first)
        with pytest.raises(Unavailable):
            await joining
        world.resume(first)
        member = await first.join(info(1))
        assert member.members.nodes == await second.nodes() == {1: info(1)}

    in_world(scenario)


def test_a_node_that_begins_to_listen_without_contact_hears_later_hints():
    async def scenario(world):
        world.delay_s = 1.0
        first, second = world.session(), world.session()
        await first.hint("placement")  # No node listens yet.
        recorder = CallRecorder()
        second.on_hint("placement", recorder)
        await pass_time(1.5)
        world.suspend(second)
        world.resume(second)
        await recorder.at_least(1)
        await first.hint("placement")
        await recorder.at_least(2)

    in_world(scenario)


def test_a_cancelled_release_still_releases_the_lock():
    async def scenario(world):
        world.delay_s = 1.0
        first, second = world.session(), world.session()
        lease = await first.acquire(SLOT, 100.0)
        releasing = _task(lease.release())
        await pass_time(0.5)
        releasing.cancel()
        after = await second.acquire(SLOT, 100.0)
        assert after.valid

    in_world(scenario)


def test_a_long_outage_ends_no_session():
    async def scenario(world):
        first, second = world.session(), world.session()
        lease = await first.acquire(SLOT, 100.0)
        world.outage()
        late = world.session()
        await pass_time(3600.0)
        assert late.contact is Contact.SUSPENDED
        world.recover()
        assert await lease.verify()
        assert [node.contact for node in (first, second, late)] == [Contact.CONNECTED] * 3

    in_world(scenario)


def test_a_session_that_is_closed_without_contact_ends_by_the_clock_of_the_servers():
    async def scenario(world):
        first, second = world.session(), world.session()
        await first.acquire(SLOT, 100.0)
        world.outage()
        await first.close()
        world.recover()
        await second.acquire(SLOT, 100.0)

    in_world(scenario)


class Contention:
    """Three nodes take and release three locks, under faults drawn from a seed."""

    END_S = 60.0

    def __init__(self, world, seed):
        self.world = world
        self.draw = random.Random(seed)
        self.nodes = [world.session() for _ in range(3)]
        self.held = []
        self.history = []
        world.delay_s = 0.01
        world.notification_delay_s = self.draw.choice([0.0, 0.02, 0.3])

    async def run(self):
        members = [await node.join(info(number)) for number, node in enumerate(self.nodes)]
        nodes_working = [_task(self.take_locks(number)) for number in range(3)]
        await self.inject_faults()
        for working in nodes_working:
            await working
        for member in members:
            await sees(member, 0, 1, 2)

    async def take_locks(self, number):
        while self.world.clock.monotonic() < self.END_S:
            slot = f"slot/{self.draw.randrange(3)}"
            attempt = self.nodes[number].acquire(slot, self.world.clock.monotonic() + 5.0)
            try:
                async with asyncio.timeout(self.draw.choice([0.015, 0.5, 9.0])):
                    lease = await attempt
            except (NoLeader, TimeoutError):
                continue
            self.check(lease)
            self.history.append(
                (number, slot, round(self.world.clock.monotonic(), 6), lease.session)
            )
            await pass_time(self.draw.uniform(0, 1))
            await lease.release()

    def check(self, lease):
        """Check that no other node believes in a lease on this lock whose session lives."""
        alive = self.world.nodes.sessions
        others = [one for one in self.held if one.valid and one.session in alive]
        assert lease.resource not in [one.resource for one in others]
        self.held = [*others, lease]

    async def inject_faults(self):
        while self.world.clock.monotonic() < self.END_S:
            node = self.draw.choice(self.nodes)
            await pass_time(self.draw.uniform(0, 2))
            match self.draw.randrange(5):
                case 0:
                    self.world.expire(node, noticed_after_s=self.draw.uniform(0, 1))
                case 1:
                    self.world.outage()
                    await pass_time(self.draw.uniform(0, 6))
                    self.world.recover()
                case 2:
                    self.world.wipe()
                case _:
                    self.world.suspend(node, session_ends_after_s=self.draw.uniform(0, 3))
                    await pass_time(self.draw.uniform(0, 2))
                    self.world.resume(node)


@pytest.mark.parametrize("goes_on", ["before", "after"])
def test_a_node_that_was_paused_in_an_outage_has_contact_again(goes_on):
    async def scenario(world):
        node = world.session()
        world.outage()
        world.deafen(node)
        if goes_on == "before":
            world.listen(node)
            world.recover()
        else:
            world.recover()
            world.listen(node)
        assert node.contact is Contact.CONNECTED

    in_world(scenario)


def test_a_node_learns_after_a_long_pause_that_its_session_is_over():
    async def scenario(world):
        node, other = world.session(), world.session()
        lease = await node.acquire("slot/1", world.clock.monotonic() + 1)
        world.deafen(node)
        await other.acquire("slot/1", world.clock.monotonic() + 2 * SESSION_TIMEOUT_S)
        assert lease.valid
        world.listen(node)
        assert not lease.valid
        assert node.contact is Contact.CONNECTED

    in_world(scenario)


@pytest.mark.parametrize("seed", range(15))
def test_under_faults_a_lock_has_one_holder_and_no_lock_is_left_over(seed):
    async def scenario(world):
        contention = Contention(world, seed)
        await contention.run()
        assert len(contention.history) > 20
        # No cancelled or cut-off attempt has left a node that blocks others.
        for number in range(3):
            lease = await contention.nodes[0].acquire(
                f"slot/{number}", world.clock.monotonic() + 30.0
            )
            await lease.release()

    in_world(scenario)


def test_a_seed_repeats_its_history():
    assert _history(1) == _history(1)
    assert _history(1) != _history(2)


def _history(seed):
    async def scenario(world):
        contention = Contention(world, seed)
        await contention.run()
        return contention.history

    return in_world(scenario)


def _task(work):
    return asyncio.get_running_loop().create_task(work)


def test_a_node_that_can_not_decode_its_own_entry_looks_again_at_intervals():
    async def scenario(world):
        world.delay_s = 0.001
        first, second = world.session(), world.session()
        member = await first.join(info(0))
        await second.join(info(1))
        looks, children = 0, first.tree.children

        async def counted(*arguments):
            nonlocal looks
            looks += 1
            return await children(*arguments)

        first.tree.children = counted
        await second.tree.put("/broker/nodes/000", b"{")
        await pass_time(10.0)
        assert 1 < looks < 1000
        await second.tree.delete("/broker/nodes/000")
        await sees(member, 0, 1)

    in_world(scenario)
