"""Keep the operators' settings of where topics are led: pins, and drained nodes.

Both are records, so that they outlive every node. They are few, so a node reads all of them::

    pin/ns:topic:   {"node": 7}         that node leads this topic while it lives; null: any node
    drained/007     {"drained": true}   this node leads nothing, also after a restart, unless no other node is left

A pin's record is never removed, because a record store only compares and sets: a removed pin has the value null, and a
drain that was undone the value false. An unreadable record has no effect, and is reported: a node must not stop because
of a pin. Setting the present value again writes nothing. So a change with an unknown outcome can simply be repeated.
After a change of a record, the caller sends the hint ``placement``. A node that misses the hint reads the records
later anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.coordination.ports import INSTANCES_MAX
from broker.errors import OutcomeUnknown, StorageCorrupt, UnavailableError
from broker.model import TopicId
from broker.storage.keys import topic_prefix
from broker.storage.records import RecordStore

HINT: Final = "placement"
PIN_PREFIX: Final = b"pin/"
DRAINED_PREFIX: Final = b"drained/"
PUT_TRIES_MAX: Final = 8

Value = dict[str, object]


class Placement(NamedTuple):
    """All settings of the operators, as read at one time. Nodes are instance ids."""

    pins: Mapping[TopicId, int] = {}
    drained: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()
    """The errors of records that have no effect."""


async def read_placement(records: RecordStore) -> Placement:
    """Return all pins and drained nodes. Raises Unavailable if they can't be read now."""
    pins: dict[TopicId, int] = {}
    drained: set[int] = set()
    problems: list[str] = []
    for key, record in await records.scan_prefix(PIN_PREFIX):
        try:
            topic, node = _topic_of(key), _node(key, record.value)
        except StorageCorrupt as error:
            problems.append(error.message)
            continue
        if node is not None:
            pins[topic] = node
    for key, record in await records.scan_prefix(DRAINED_PREFIX):
        try:
            if _decode(key, record.value).get("drained") is True:
                drained.add(_instance_of(key))
        except StorageCorrupt as error:
            problems.append(error.message)
    return Placement(pins, frozenset(drained), tuple(problems))


async def pin(records: RecordStore, topic: TopicId, node: int) -> bool:
    """Pin a topic to a node, which leads it while it lives. Return whether this changed anything.

    Raises:
        OutcomeUnknown: it may have been done; repeating it is safe.
    """
    assert 0 <= node < INSTANCES_MAX
    return await _set(records, _pin_key(topic), {"node": node}, absent_means=None)


async def unpin(records: RecordStore, topic: TopicId) -> bool:
    """Remove a topic's pin: any node may lead it again. Return whether it had a pin. Raises as ``pin`` does."""
    return await _set(records, _pin_key(topic), {"node": None}, absent_means={"node": None})


async def drain(records: RecordStore, node: int) -> bool:
    """Let a node lead nothing while others can. Return whether this changed anything. Raises as ``pin`` does."""
    return await _set(records, _drained_key(node), {"drained": True}, absent_means=None)


async def undrain(records: RecordStore, node: int) -> bool:
    """Let a node lead again. Return whether it was drained. Raises as ``pin`` does."""
    value: Value = {"drained": False}
    return await _set(records, _drained_key(node), value, absent_means=value)


async def _set(
    records: RecordStore, key: bytes, value: Value, *, absent_means: Value | None
) -> bool:
    changed = False
    for _ in range(PUT_TRIES_MAX):
        try:
            found = await records.get(key)
            known = absent_means if found is None else _understood(key, found.value)
            if known == value:
                return changed
            version = None if found is None else found.version
            if await records.put_if(key, version, _encode(value)) is not None:
                return True
        except OutcomeUnknown:
            # Read the record again: if it has the value now, this write or another one did it.
            changed = True
        except UnavailableError as error:
            if not changed:
                raise
            raise OutcomeUnknown(f"The record {key.decode()} may have been changed.") from error
    raise OutcomeUnknown(f"Changing the record {key.decode()} did not finish.")


def _pin_key(topic: TopicId) -> bytes:
    return PIN_PREFIX + topic_prefix(topic)


def _drained_key(node: int) -> bytes:
    assert 0 <= node < INSTANCES_MAX
    return DRAINED_PREFIX + b"%03d" % node


def _topic_of(key: bytes) -> TopicId:
    try:
        namespace, topic, end = key[len(PIN_PREFIX) :].decode().split(":")
    except ValueError as error:
        raise StorageCorrupt(f"the record {key!r} names no topic") from error
    if end:
        raise StorageCorrupt(f"the record {key!r} names no topic")
    return TopicId(namespace, topic)


def _instance_of(key: bytes) -> int:
    digits = key[len(DRAINED_PREFIX) :]
    if not digits.isdigit() or int(digits) >= INSTANCES_MAX:
        raise StorageCorrupt(f"the record {key!r} names no node")
    return int(digits)


def _node(key: bytes, value: bytes) -> int | None:
    node = _decode(key, value).get("node")
    if node is None:
        return None
    if not isinstance(node, int) or not 0 <= node < INSTANCES_MAX:
        raise StorageCorrupt(f"the record {key!r} names no node")
    return node


def _encode(value: Value) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _understood(key: bytes, value: bytes) -> Value | None:
    """Return the value of a record; None if it is unreadable, so that it is written again."""
    try:
        return _decode(key, value)
    except StorageCorrupt:
        return None


def _decode(key: bytes, value: bytes) -> Value:
    try:
        decoded = json.loads(value)
    except ValueError as error:
        raise StorageCorrupt(f"the record {key!r} does not decode") from error
    if not isinstance(decoded, dict):
        raise StorageCorrupt(f"the record {key!r} does not decode")
    return decoded
