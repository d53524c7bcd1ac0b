"""Changing a topic's record as its leader: what is answered afterwards, by any node, goes by the change.

A node that leads answers by what it remembers of the record; any other reads the record. So the leader
writes the record, goes by it, and then looks whether it still leads: whoever leads after it reads the
record when its log is held (topic_claims.py), hence after the change or in time for this look to fail.

A **purge** is such a change. It names a moment, before which nothing is read any more; that moment only rises.
It never lies past the log's last message: a claim gives ids above that one, and the leader itself gives none
before the moment from then on. So no message that comes later is hidden, whatever the clocks of nodes say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.errors import BadRequest, BrokerError, NoLeader, NotLeader, OutcomeUnknown
from broker.model import Topic, TopicId, timestamp_of
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders

Change = Callable[[TopicLeader], Awaitable[Topic]]


async def change_led(leaders: Leaders, topic: TopicId, change: Change, deadline: float) -> Topic:
    """Change the record as the topic's leader, and make sure that the leader goes by it.

    One that claims the log meanwhile may have read the record before. If it is this node, it reads it
    again; if it is another, that one is told by the same change, to which NotLeader leads: unless
    a third change came between, it writes nothing and only reads.

    Raises:
        TopicNotFound: there is none.
        NotLeader, NoLeader: nothing was done, or it is done again.
        OutcomeUnknown: whoever leads the topic may not know of the change.
    """
    state = leaders.state(topic)
    with state.used():
        leader = await leaders.lead(topic, deadline)
        async with state.lock:
            changed = await change(leader)
            state.adopt(leader, changed)
        try:
            while not await leader.is_proven():
                if leaders.around.clock.monotonic() >= deadline:
                    raise NoLeader("no node could be asked in time")
                leader = await leaders.lead(topic, deadline)
                async with state.lock:
                    state.adopt(leader, await leaders.registry.get(topic))
        except NotLeader:
            raise
        except BrokerError as error:
            raise OutcomeUnknown(
                f"Whether the leader of topic '{topic}' knows of the change is unknown: "
                f"{error.message}"
            ) from error
        return changed


def purge_through(before_ms: int, *, now_ms: int, pointer_ms: int, ahead_ms_max: int) -> int:
    """Return the moment before which a purge hides messages: never past the one after the log's last.

    Raises BadRequest if it lies further in the future than ids may, by the clock of another node.
    """
    if before_ms > now_ms + ahead_ms_max:
        raise BadRequest(
            f"before: {before_ms} lies {before_ms - now_ms:,} ms in the future by this node's clock. To "
            "remove all that is stored, say `before=now`."
        )
    return min(before_ms, pointer_ms + 1)


def purge(leaders: Leaders, before_ms: int) -> Change:
    """Return the change that lets nothing be read any more that was published before a moment."""

    async def change(leader: TopicLeader) -> Topic:
        settings = leaders.around.settings
        moment_ms = purge_through(
            before_ms,
            now_ms=leaders.around.clock.now_ms(),
            pointer_ms=timestamp_of(leader.hold.pointer),
            ahead_ms_max=settings.clock_skew_ms_max + settings.id_lead_ms_max,
        )
        leader.writer.ids.rise_to(moment_ms)
        return await leaders.registry.purge(leader.topic.id, leader.topic.generation, moment_ms)

    return change
