"""Change a topic's record as its leader, so that every later answer of any node follows the change.

The leader answers from its memory of the record; any other node reads the record. So the leader writes the
record, adopts it, and then proves that it still leads. A later leader reads the record once it holds the log
(topic_claims.py). Either it reads after the change, or its claim came early enough for this proof to fail.

A **purge** is such a change. It names a moment: messages before it are not read any more. The moment only rises.
It never lies past the log's last message. A later claim gives only ids above that message, and the leader itself
gives no id before the moment from then on. So a purge hides no later message, even if the clocks of nodes differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.errors import BadRequest, BrokerError, NoLeader, NotLeader, OutcomeUnknown
from broker.model import Topic, TopicId, timestamp_of
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders

Change = Callable[[TopicLeader], Awaitable[Topic]]


async def change_led(leaders: Leaders, topic: TopicId, change: Change, deadline: float) -> Topic:
    """Change the record as the topic's leader, and make sure that the leader has adopted it.

    A leader that claims the log meanwhile may have read the record before the change. If this node claims it again,
    it reads the record again. If another node claims it, NotLeader makes the caller repeat this change at that
    node. Its leader then finds the record as this change left it, and only reads. If a third change came between,
    that node's leader writes this change once more, over the third one.

    Raises:
        TopicNotFound: there is no such topic.
        NotLeader, NoLeader: nothing was done, or repeating the change is safe.
        Unavailable: the deadline passed before its turn; nothing was done.
        OutcomeUnknown: the topic's leader may not know of the change.
    """
    state = leaders.state(topic)
    with state.used():
        leader = await leaders.lead(topic, deadline)
        async with state.turn(deadline):
            try:
                changed = await change(leader)
            except BrokerError as error:
                state.doubt(error)
                raise
            state.adopt(leader, changed)
        try:
            while not await leader.is_proven():
                if leaders.around.clock.monotonic() >= deadline:
                    raise NoLeader("no node answered in time")
                leader = await leaders.lead(topic, deadline)
                async with state.turn(deadline):
                    state.adopt(leader, await leaders.registry.get(topic))
        except NotLeader:
            raise
        except BrokerError as error:
            raise OutcomeUnknown(
                f"The leader of topic '{topic}' may not know of the change: {error.message}"
            ) from error
        return changed


def purge_through(before_ms: int, *, now_ms: int, pointer_ms: int, ahead_ms_max: int) -> int:
    """Return the moment before which a purge hides messages: at most 1 ms past the log's last message.

    Raises BadRequest if ``before_ms`` lies further in the future than an id can, by the clock of another node.
    """
    if before_ms > now_ms + ahead_ms_max:
        raise BadRequest(
            f"before: {before_ms} lies {before_ms - now_ms:,} ms in the future by this node's clock. To "
            "remove all messages, say `before=now`."
        )
    return min(before_ms, pointer_ms + 1)


def purge(leaders: Leaders, before_ms: int) -> Change:
    """Return the change that hides all messages published before a moment."""

    async def change(leader: TopicLeader) -> Topic:
        settings = leaders.around.settings
        moment_ms = purge_through(
            before_ms,
            now_ms=leaders.around.clock.now_ms(),
            pointer_ms=timestamp_of(leader.hold.pointer),
            # Both nodes' clocks may be off the storage's clock, in opposite directions.
            ahead_ms_max=2 * settings.clock_skew_ms_max + settings.id_lead_ms_max,
        )
        leader.writer.ids.rise_to(moment_ms)
        return await leaders.registry.purge(leader.topic.id, leader.topic.generation, moment_ms)

    return change
