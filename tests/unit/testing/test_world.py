import asyncio
import random

import pytest
from broker.testing.adversary import CALM, AdversaryCells

from broker.errors import Fenced
from broker.testing.clock import VirtualClock, pass_time, virtual_loop
from broker.testing.world import Node, NodeDied, own_tasks
from broker.topics.writer import Write


def run(story):
    async def main(loop):
        cells = AdversaryCells(loop, random.Random(1), CALM)
        nodes = [
            Node(f"n{number}", cells, VirtualClock(loop), random.Random(number), instance=number)
            for number in range(2)
        ]
        await story(*nodes)

    with virtual_loop() as loop:
        own_tasks(loop)
        loop.run_until_complete(main(loop))


async def publish(node: Node, payload: bytes):
    leader = await node.leader(1)
    write = Write(asyncio.get_running_loop().create_future(), [payload], None)
    return await leader.publish(write)


def test_what_a_node_did_stops_when_it_is_killed():
    async def story(node, _):
        ticks = []

        async def background():
            while True:
                ticks.append(1)
                await pass_time(0.1)

        async def work():
            ticking = asyncio.ensure_future(background())
            await pass_time(10)
            ticking.cancel()

        working = asyncio.ensure_future(node.run(work()))
        await pass_time(1)
        node.kill()
        with pytest.raises(NodeDied):
            await working
        seen = len(ticks)
        assert seen >= 10
        await pass_time(1)
        assert len(ticks) == seen
        assert not node.tasks

    run(story)


def test_a_caller_who_gives_up_is_not_told_that_the_node_died():
    async def story(node, _):
        waiting = asyncio.ensure_future(node.run(pass_time(10)))
        await pass_time(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(story)


def test_a_killed_node_forgets_that_it_led():
    async def story(node, _):
        leader = await node.run(node.leader(1))
        node.kill()
        again = await node.run(node.leader(1))
        assert again is not leader
        assert again.epoch == leader.epoch + 1
        assert node.claims == 2

    run(story)


def test_both_may_believe_and_one_is_told_otherwise():
    async def story(one, other):
        await one.run(publish(one, b"a"))
        await other.run(other.take_over(1))
        with pytest.raises(Fenced):
            await one.run(publish(one, b"b"))
        await one.run(publish(one, b"c"))
        assert one.claims == 2

    run(story)


def test_a_handoff_leaves_no_owner():
    async def story(node, other):
        leader = await node.run(node.leader(1))
        await node.run(publish(node, b"a"))
        await node.run(node.hand_off())
        head = await other.run(other.store.head(leader.hold.log))
        assert head is not None
        assert head.owner == ""
        assert leader.ended is not None

    run(story)
