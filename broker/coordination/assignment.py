"""Who should lead a topic: a function of which nodes live, and of the operator's pins.

Nothing is stored per topic. A topic hashes into one of 1024 slots, and a slot goes to the live instance
with the highest score for it (rendezvous hashing)::

    topic ── hash ──▶ slot 17 ──▶ the instance i with the highest score(i, 17)      "slot/17"
      └── pinned to a node that lives ──▶ that node                                 "pin/ns:topic"

An instance's scores depend on its number alone. So a node that joins takes the slots for which it scores
best, about 1/N of all, and every other slot stays where it is; one that leaves gives its own slots up
and no other. All nodes that know of the same members and pins come to the same answer, and one that knows
less only asks the wrong node.

The scores of an instance are one hash, made once. An assignment costs one maximum per slot; asking it
costs one hash of the topic's name.
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
    """Return an instance's score for each slot: 7 bytes of hash, then the number itself.

    The number makes scores of different instances different, and the winner readable from its score.
    """
    drawn = shake_128(b"slots of %d" % instance).digest(SLOTS * _SCORE_BYTES)
    last = bytes((instance,))
    slices = (drawn[at : at + _SCORE_BYTES] for at in range(0, len(drawn), _SCORE_BYTES))
    return _SCORES.unpack(b"".join(part + last for part in slices))


class Assignment:
    """Which instance should lead which slot, and which topics are pinned. It never changes."""

    __slots__ = ("_leaders", "instances", "pins")

    def __init__(
        self, instances: Iterable[int] = (), pins: Mapping[TopicId, int] | None = None
    ) -> None:
        """Assign all slots to ``instances``, the nodes that live and take topics.

        A pin to a node that is not among them counts for nothing: the topic is led by its slot.
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
        """Assign to the nodes that live, leaving out those that drain or that were told to.

        Where nobody else is left, those that were told to lead nevertheless, as when the last two nodes
        were told so at the same time: drained or not, a node that lives is better than no leader.
        """
        staying = {instance for instance, node in nodes.items() if not node.draining}
        return cls(staying.difference(drained) or staying, pins)

    def leader_of(self, topic: TopicId) -> int | None:
        """Return the instance that should lead ``topic``; None if no node takes topics."""
        pinned = self.pins.get(topic)
        return pinned if pinned is not None else self.leader_of_slot(slot_of(topic))

    def leader_of_slot(self, slot: int) -> int | None:
        """Return the instance that should lead the topics of a slot that are not pinned."""
        return self._leaders[slot] if self._leaders else None

    def resource_of(self, topic: TopicId) -> str:
        """Return the name of the lock that goes with leading ``topic``."""
        return pin_resource(topic) if topic in self.pins else slot_resource(slot_of(topic))

    def leader_of_resource(self, resource: str) -> int | None:
        """Return who should hold a lock on a slot or a pin; None for a pin that does not count.

        Raises:
            ValueError: it names neither a slot nor a pin.
        """
        kind, _, name = resource.partition("/")
        if kind == "slot":
            return self.leader_of_slot(int(name))
        if kind == "pin":
            namespace, _, topic = name.partition(":")
            return self.pins.get(TopicId(namespace, topic))
        raise ValueError(f"{resource!r} is neither a slot nor a pin")

    def slots_of(self, instance: int) -> list[int]:
        """Return the slots that ``instance`` should lead."""
        return [slot for slot, leader in enumerate(self._leaders) if leader == instance]
