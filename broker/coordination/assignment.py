"""Assign topics to nodes: the leader is a function of the live nodes and of the operator's pins.

Nothing is stored per topic. A topic hashes into one of 1024 slots, and a slot goes to the live instance
with the highest score for it (rendezvous hashing)::

    topic ── hash ──▶ slot 17 ──▶ the instance i with the highest score(i, 17)      "slot/17"
      └── pinned to a live node ──▶ that node                                       "pin/ns:topic"

An instance's scores depend only on its number. So a node that joins takes the slots for which it has the highest
score, about 1/N of all, and every other slot stays. A node that leaves gives up only its own slots. All nodes that
know the same members and pins compute the same leader. A node with older knowledge only asks the wrong node.

The scores of an instance come from one hash, computed once. An assignment costs one maximum per slot; a lookup costs
one hash of the topic's name.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from hashlib import blake2b, shake_128

from broker.coordination.ports import NodeInfo
from broker.model import TopicId

SLOTS = 1024

_SCORE_BYTES = 7
_SCORES = struct.Struct(f">{SLOTS}Q")


def slot_of(topic: TopicId) -> int:
    """Return the slot of a topic. It is the same on every machine and in every release."""
    name = f"{topic.namespace}:{topic.topic}".encode()
    return int.from_bytes(blake2b(name, digest_size=2).digest(), "big") % SLOTS


def slot_resource(slot: int) -> str:
    """Return the name of the lock on a slot."""
    return f"slot/{slot}"


def pin_resource(topic: TopicId) -> str:
    """Return the name of the lock on a pinned topic."""
    return f"pin/{topic}"


@cache
def _scores(instance: int) -> tuple[int, ...]:
    """Return an instance's score for each slot: 7 bytes of hash, then the instance number.

    So no two instances have the same score, and the highest score tells its instance.
    """
    drawn = shake_128(b"slots of %d" % instance).digest(SLOTS * _SCORE_BYTES)
    last = bytes((instance,))
    slices = (drawn[at : at + _SCORE_BYTES] for at in range(0, len(drawn), _SCORE_BYTES))
    return _SCORES.unpack(b"".join(part + last for part in slices))


class Assignment:
    """The instance that should lead each slot, and the pinned topics. It never changes."""

    __slots__ = ("_leaders", "instances", "pins")

    def __init__(
        self, instances: Iterable[int] = (), pins: Mapping[TopicId, int] | None = None
    ) -> None:
        """Assign all slots to ``instances``, the live nodes that take topics.

        A pin to any other node has no effect: the leader of the topic's slot leads it.
        """
        self.instances = frozenset(instances)
        self.pins = {topic: node for topic, node in (pins or {}).items() if node in self.instances}
        rows = [_scores(instance) for instance in self.instances]
        self._leaders = tuple(max(column) & 0xFF for column in zip(*rows, strict=True))

    @classmethod
    def of(
        cls,
        nodes: Mapping[int, NodeInfo],
        drained: Collection[int] = (),
        pins: Mapping[TopicId, int] | None = None,
    ) -> Assignment:
        """Assign to the live nodes, except nodes that are draining and nodes that operators drained.

        If no other node is left, the nodes that operators drained still lead: a drained node is better than no leader.
        This happens if operators drain the last two nodes at the same time.
        """
        staying = {instance for instance, node in nodes.items() if not node.draining}
        return cls(staying.difference(drained) or staying, pins)

    def leader_of(self, topic: TopicId) -> int | None:
        """Return the instance that should lead ``topic``; None if no node takes topics."""
        pinned = self.pins.get(topic)
        return pinned if pinned is not None else self.leader_of_slot(slot_of(topic))

    def leader_of_slot(self, slot: int) -> int | None:
        """Return the instance that should lead the unpinned topics of a slot; None if no node takes topics."""
        return self._leaders[slot] if self._leaders else None

    def resource_of(self, topic: TopicId) -> str:
        """Return the name of the lock that the leader of ``topic`` needs."""
        return pin_resource(topic) if topic in self.pins else slot_resource(slot_of(topic))

    def leader_of_resource(self, resource: str) -> int | None:
        """Return the instance that should hold the lock on a slot or a pin; None for a pin without effect.

        Raises:
            ValueError: the name is neither of a slot nor of a pin.
        """
        kind, _, name = resource.partition("/")
        if kind == "slot":
            return self.leader_of_slot(int(name))
        if kind == "pin":
            namespace, _, topic = name.partition(":")
            return self.pins.get(TopicId(namespace, topic))
        raise ValueError(f"{resource!r} is neither a slot nor a pin")
