"""Requests to one node: a topic whose leader does not answer leaves turns to the others."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.http.outbound import Ask
from broker.model import TopicId
from broker.operations.operation import RepeatEffect
from broker.routing.decisions import Call
from broker.routing.forwarder import TURNS_MAX, Forwarder
from broker.routing.nodeheaders import Repeat, Sender
from broker.routing.peers import CONNECTIONS_MAX, RelayedAnswer
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate
from broker.turns import LATE_S

URL = "http://node-1"
HUNG, WELL = TopicId("ns", "hung"), TopicId("ns", "well")


class Waiting:
    """The unfinished answer to a poll."""

    status = 200
    headers: ClassVar[dict[str, str]] = {"x-request-id": "1"}
    ended = False

    async def chunk(self, silence_s: float | None = None) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""


class OneNode:
    """Answers for the topic WELL at once, and for all others never."""

    def __init__(self) -> None:
        self.in_flight = 0

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        assert (url, timeout_s > 0) == (URL, True)
        self.in_flight += 1
        try:
            if f"/{WELL.topic}/" not in ask.path:
                await pass_time(timeout_s)
                raise NoAnswer("silence")
            return HttpAnswer(200, {"x-request-id": "1"}, b"")
        finally:
            self.in_flight -= 1

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> RelayedAnswer:
        if "/cut/" in ask.path:
            raise NoAnswer("cut")
        return Waiting()

    async def close(self) -> None:
        """Do nothing."""


def call(topic: TopicId, deadline: float) -> Call:
    return Call(
        RepeatEffect.KEYED,
        "publish",
        topic,
        "POST",
        f"/v1/{topic.topic}/publish",
        {},
        b"",
        deadline,
    )


def test_a_topic_that_hangs_leaves_turns_to_the_others() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = OneNode()
        forwarder = Forwarder(node, VirtualClock(loop), Sender(0, "life"), "secret")

        async def send(topic: TopicId) -> int:
            sent = await forwarder.send(
                URL, call(topic, loop.time() + 30), Repeat(), None, lambda: None
            )
            return sent.reply.status

        hung = [asyncio.ensure_future(send(HUNG)) for _ in range(1000)]
        await pass_time(0.01)
        assert node.in_flight < TURNS_MAX
        began = loop.time()
        for _ in range(100):
            assert await send(WELL) == 200
        assert loop.time() == began, "no request waited"
        hung += [asyncio.ensure_future(send(TopicId("ns", f"h{n}"))) for n in range(1000)]
        await pass_time(10 * LATE_S)
        assert await send(WELL) == 200
        assert TURNS_MAX < node.in_flight < CONNECTIONS_MAX
        await pass_time(25)
        ended = await asyncio.gather(*hung, return_exceptions=True)
        assert {type(error) for error in ended} == {NotSent, NoAnswer}

    simulate(main)


def test_a_node_that_was_gone_begins_with_all_its_turns() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = OneNode()
        forwarder = Forwarder(node, VirtualClock(loop), Sender(0, "life"), "secret")

        async def send() -> None:
            asked = call(HUNG, loop.time() + 30)
            await forwarder.send(URL, asked, Repeat(), None, lambda: None)

        hung = [asyncio.ensure_future(send()) for _ in range(1000)]
        await pass_time(2 * LATE_S)
        before = node.in_flight
        hung.append(asyncio.ensure_future(send()))
        await pass_time(0.0)
        assert node.in_flight == before
        forwarder.forget_others({URL})
        hung.append(asyncio.ensure_future(send()))
        await pass_time(0.0)
        assert node.in_flight == before
        forwarder.forget_others(())
        hung.append(asyncio.ensure_future(send()))
        await pass_time(0.0)
        assert node.in_flight == before + 1
        ended = await asyncio.gather(*hung, return_exceptions=True)
        assert {type(error) for error in ended} == {NotSent, NoAnswer}

    simulate(main)
