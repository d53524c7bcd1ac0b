"""The lanes and epochs that a forwarder remembers."""

import gc

import pytest

from broker.model import TopicId
from broker.routing import forwarder
from broker.routing.forwarder import Epochs
from broker.routing.lanes import LaneDecision, Lanes, ReceivedLanes, SentLane
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
def test_lanes_are_forgotten_with_their_connection() -> None:
    def count() -> int:
        gc.collect()
        return sum(type(each) is SentLane for each in gc.get_objects())

    before = count()
    lanes, source = Lanes(), Source()
    lanes.of(source, topic(1))
    assert count() == before + 1
    del source
    assert count() == before


def test_the_lanes_of_one_connection_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr("broker.routing.lanes.LANES_OF_ONE_MAX", 3)
    lanes, source = Lanes(), Source()
    numbers = {lanes.of(source, topic(number)).lane for number in range(1000)}
    assert numbers == {1, 2, 3}
    open_one = lanes.of(source, topic(999))
    open_one.begin()
    assert len({lanes.of(source, topic(number)) for number in range(10)} | {open_one}) == 3
    assert lanes.of(source, topic(999)) is open_one


def test_a_lane_with_an_unresolved_request_is_not_reused(monkeypatch) -> None:
    monkeypatch.setattr("broker.routing.lanes.LANES_OF_ONE_MAX", 3)
    lanes, source = Lanes(), Source()
    found = [lanes.of(source, topic(number)) for number in range(3)]
    for lane in found:
        lane.begin()
    assert lanes.of(source, topic(3)) not in found


def test_a_client_of_many_topics_needs_few_lanes_of_a_leader(monkeypatch) -> None:
    """The leader takes each request, although earlier requests of its lane were for other topics."""
    monkeypatch.setattr("broker.routing.lanes.LANES_OF_ONE_MAX", 3)
    lanes, source, leader = Lanes(), Source(), ReceivedLanes(lanes_max=3)
    sender = Sender(1, "life")
    for number in range(100):
        lane = lanes.of(source, topic(number % 50))
        ticket = lane.ticket(lane.begin())
        assert leader.judge(sender, ticket, 1, deadline=30.0, now=0.0) is LaneDecision.TAKE
        leader.answered(sender, ticket)
        lane.resolved(ticket.number)


def test_the_remembered_epochs_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(forwarder, "EPOCHS_MAX", 2)
    epochs = Epochs()
    for number in range(3):
        epochs.learn(topic(number), number + 1)
    epochs.learn(topic(2), None)
    assert [epochs.get(topic(number)) for number in range(3)] == [None, 2, 3]


def test_a_node_learns_that_epochs_began_anew() -> None:
    epochs = Epochs()
    for epoch in (7, 1):
        epochs.learn(topic(1), epoch)
    assert epochs.get(topic(1)) == 1
