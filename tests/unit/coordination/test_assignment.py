from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.assignment import (
    SLOTS,
    Assignment,
    pin_resource,
    slot_of,
    slot_resource,
)
from broker.coordination.ports import NodeInfo
from broker.model import TopicId

TOPICS = [TopicId(f"namespace{number % 7}", f"topic-{number}") for number in range(5_000)]
INSTANCES = st.integers(min_value=0, max_value=255)


def node(instance: int, *, draining: bool = False) -> NodeInfo:
    return NodeInfo(instance, f"i{instance}", f"http://{instance}:1", "1", 1, draining)


@given(st.frozensets(INSTANCES, min_size=1, max_size=40), INSTANCES)
def test_a_joining_node_only_takes_slots_and_a_leaving_node_only_gives_slots(live, other):
    without, joined = Assignment(live - {other}), Assignment(live | {other})
    for slot in range(SLOTS):
        before, after = without.leader_of_slot(slot), joined.leader_of_slot(slot)
        assert after in (before, other)


@given(st.lists(INSTANCES, unique=True, min_size=1, max_size=40))
def test_the_order_of_the_nodes_does_not_matter(live):
    there, back = Assignment(live), Assignment(reversed(live))
    assert all(there.leader_of_slot(slot) == back.leader_of_slot(slot) for slot in range(SLOTS))


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(min_value=1, max_value=20), st.integers(min_value=20, max_value=235))
def test_a_joining_node_takes_about_its_share(count, first):
    before = Assignment(range(first, first + count))
    after = Assignment([*range(first, first + count), 0])
    moved = sum(before.leader_of(topic) != after.leader_of(topic) for topic in TOPICS)
    # The share of slots deviates by at most 16 of 1024, and the share of topics by a little more.
    assert moved / len(TOPICS) == pytest.approx(1 / (count + 1), abs=0.09)


@pytest.mark.parametrize("count", [2, 3, 5, 16, 256])
def test_slots_are_spread(count):
    assignment = Assignment(range(count))
    led = Counter(assignment.leader_of_slot(slot) for slot in range(SLOTS))
    fair = SLOTS / count
    assert set(led) == set(range(count)) or count == 256
    assert max(led.values()) < fair + 5 * fair**0.5


def test_topics_are_spread_over_the_slots():
    filled = Counter(slot_of(topic) for topic in TOPICS)
    assert len(filled) > 0.98 * SLOTS
    assert max(filled.values()) < 20


def test_slots_of_topics_and_leaders_of_slots_never_change():
    # Nodes of different releases must agree: these values never change.
    assert slot_of(TopicId("default", "audit")) == 715
    three = Assignment([0, 1, 2])
    assert [three.leader_of_slot(slot) for slot in range(12)] == [
        2,
        1,
        1,
        1,
        0,
        1,
        1,
        1,
        0,
        2,
        2,
        2,
    ]


def test_a_pin_overrides_the_slot_while_its_node_lives():
    topic = TOPICS[0]
    usual = Assignment([1, 2]).leader_of(topic)
    other = 3 - usual
    pinned = Assignment([1, 2], {topic: other})
    assert pinned.leader_of(topic) == other
    assert pinned.resource_of(topic) == pin_resource(topic) == f"pin/{topic}"
    gone = Assignment([usual], {topic: other})
    assert gone.leader_of(topic) == usual
    assert gone.resource_of(topic) == slot_resource(slot_of(topic))
    again = [one for one in TOPICS[1:] if slot_of(one) == slot_of(topic)]
    assert [pinned.leader_of(one) for one in again] == [usual] * len(again)


@given(st.frozensets(INSTANCES, min_size=1, max_size=8), st.data())
def test_the_leader_of_a_topic_should_hold_its_lock(live, data):
    topics = st.sampled_from(TOPICS[:50])
    assignment = Assignment(live, data.draw(st.dictionaries(topics, INSTANCES, max_size=5)))
    topic = data.draw(topics)
    resource = assignment.resource_of(topic)
    assert assignment.leader_of_resource(resource) == assignment.leader_of(topic)


def test_draining_and_drained_nodes_lead_no_topic():
    nodes = {1: node(1), 2: node(2, draining=True), 3: node(3)}
    pins = {TOPICS[0]: 2, TOPICS[1]: 3}
    assignment = Assignment.of(nodes, {3}, pins)
    assert assignment.instances == {1}
    assert assignment.pins == {}
    assert {assignment.leader_of(topic) for topic in TOPICS[:100]} == {1}
    assert {assignment.leader_of_slot(slot) for slot in range(SLOTS)} == {1}


def test_drained_nodes_lead_if_no_other_node_is_left():
    nodes = {1: node(1), 2: node(2), 3: node(3, draining=True)}
    assert Assignment.of(nodes, {1, 2}).instances == {1, 2}
    assert Assignment.of(nodes, {1, 2}, {TOPICS[0]: 2}).leader_of(TOPICS[0]) == 2
    assert Assignment.of({2: node(2)}, {1, 2}).instances == {2}, "the other one is gone"
    assert Assignment.of({3: node(3, draining=True)}, {3}).instances == set()


def test_without_nodes_a_topic_has_no_leader():
    empty = Assignment()
    assert empty.leader_of(TOPICS[0]) is None
    assert empty.leader_of_slot(17) is None
    assert empty.leader_of_resource("pin/ns:topic") is None


def test_a_lock_that_is_no_slot_or_pin_is_refused():
    with pytest.raises(ValueError, match="rowlog/orders"):
        Assignment([1]).leader_of_resource("rowlog/orders")
