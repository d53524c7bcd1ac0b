"""What a forwarder remembers; what it sends is in test_service.py."""

import gc

import pytest

from broker.model import TopicId
from broker.routing import forwarder
from broker.routing.forwarder import Epochs, Lanes
from broker.routing.lanes import LaneDecision, ReceivedLanes
from broker.routing.nodeheaders import Sender


class Source:
    """Stands for a connection."""


def topic(number: int) -> TopicId:
    return TopicId("ns", f"t{number}")


def test_each_connection_and_topic_has_a_lane_of_its_own() -> None:
    lanes, one, other = Lanes(), Source(), Source()
    found = [lanes.of(one, topic(1)), lanes.of(one, topic(2)), lanes.of(other, topic(1))]
    assert len({lane.lane for lane in found}) == 3
    assert lanes.of(one, topic(1)) is found[0]


@pytest.mark.slow
def test_lanes_go_with_their_connection() -> None:
    lanes, source = Lanes(), Source()
    lanes.of(source, topic(1))
    assert len(lanes._of) == 1
    del source
    gc.collect()
    assert len(lanes._of) == 0


def test_of_one_connection_so_many_lanes_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(forwarder, "LANES_OF_ONE_MAX", 3)
    lanes, source = Lanes(), Source()
    numbers = {lanes.of(source, topic(number)).lane for number in range(1000)}
    assert numbers == {1, 2, 3}
    open_one = lanes.of(source, topic(999))
    number = open_one.begin()
    assert len({lanes.of(source, topic(number)) for number in range(10)} | {open_one}) == 3
    assert lanes.of(source, topic(999)) is open_one
    open_one.resolved(number)
    assert len(lanes._of[source]) == 3


def test_while_nothing_is_resolved_every_topic_has_its_lane(monkeypatch) -> None:
    monkeypatch.setattr(forwarder, "LANES_OF_ONE_MAX", 3)
    lanes, source = Lanes(), Source()
    found = [lanes.of(source, topic(number)) for number in range(3)]
    for lane in found:
        lane.begin()
    assert lanes.of(source, topic(3)) not in found


def test_a_client_of_very_many_topics_is_no_crowd_to_a_leader(monkeypatch) -> None:
    """Each of its requests is taken, on a lane that has had other topics before."""
    monkeypatch.setattr(forwarder, "LANES_OF_ONE_MAX", 3)
    lanes, source, leader = Lanes(), Source(), ReceivedLanes(lanes_max=3)
    sender = Sender(1, "life")
    for number in range(100):
        lane = lanes.of(source, topic(number % 50))
        ticket = lane.ticket(lane.begin())
        assert leader.judge(sender, ticket, 1, deadline=30.0, now=0.0) is LaneDecision.TAKE
        leader.answered(sender, ticket)
        lane.resolved(ticket.number)


def test_so_many_epochs_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(forwarder, "EPOCHS_MAX", 2)
    epochs = Epochs()
    for number in range(3):
        epochs.learn(topic(number), number + 1)
    epochs.learn(topic(2), None)
    assert [epochs.get(topic(number)) for number in range(3)] == [None, 2, 3]
