import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from broker.routing.lanes import LANE_SPAN_MAX, LaneDecision, ReceivedLanes, SentLane
from broker.routing.nodeheaders import LaneTicket, Sender
from broker.testing.mutants import in_force

A = Sender(1, "a")
FAR = 1e9


def judge(lanes: ReceivedLanes, number: int, lowest: int, attempt: int = 1, **more) -> LaneDecision:
    times = {"deadline": FAR, "now": 0.0, **more}
    return lanes.judge(A, LaneTicket(1, number, lowest), attempt, **times)


def test_numbers_are_taken_in_order() -> None:
    lanes = ReceivedLanes()
    assert judge(lanes, 1, 0) is LaneDecision.WAIT
    assert judge(lanes, 0, 0) is LaneDecision.TAKE
    assert judge(lanes, 1, 0) is LaneDecision.WAIT
    lanes.answered(A, LaneTicket(1, 0, 0))
    assert judge(lanes, 1, 0) is LaneDecision.TAKE


def test_a_higher_lowest_number_shows_outcomes_at_other_nodes() -> None:
    lanes = ReceivedLanes()
    assert judge(lanes, 5, 3) is LaneDecision.WAIT
    assert judge(lanes, 6, 5) is LaneDecision.WAIT
    assert judge(lanes, 5, 5) is LaneDecision.TAKE


def test_a_number_that_has_an_outcome_is_late() -> None:
    lanes = ReceivedLanes()
    assert judge(lanes, 3, 3) is LaneDecision.TAKE
    assert judge(lanes, 2, 0) is LaneDecision.LATE
    assert judge(lanes, 3, 2) is LaneDecision.TAKE


def test_an_earlier_attempt_that_arrives_after_a_later_one_is_late() -> None:
    lanes = ReceivedLanes()
    assert judge(lanes, 0, 0, attempt=2) is LaneDecision.TAKE
    assert judge(lanes, 0, 0, attempt=1) is LaneDecision.LATE
    assert judge(lanes, 0, 0, attempt=3) is LaneDecision.TAKE


def test_each_sender_has_its_own_lanes() -> None:
    lanes = ReceivedLanes()
    assert judge(lanes, 5, 5) is LaneDecision.TAKE
    for sender, lane in ((A, 2), (Sender(1, "b"), 1), (Sender(2, "a"), 1)):
        assert (
            lanes.judge(sender, LaneTicket(lane, 0, 0), 1, deadline=FAR, now=0) is LaneDecision.TAKE
        )


def test_the_number_of_lanes_is_bounded_until_their_deadlines_have_passed() -> None:
    lanes = ReceivedLanes(lanes_max=2)
    for lane in (1, 2):
        assert lanes.judge(A, LaneTicket(lane, 0, 0), 1, deadline=10, now=0) is LaneDecision.TAKE
    assert lanes.judge(A, LaneTicket(3, 0, 0), 1, deadline=10, now=9) is LaneDecision.FULL
    assert lanes.judge(A, LaneTicket(3, 0, 0), 1, deadline=20, now=11) is LaneDecision.TAKE
    assert len(lanes) == 1


def test_a_long_deadline_keeps_no_other_lane() -> None:
    lanes = ReceivedLanes(lanes_max=100)

    def take(lane: int, deadline: float, now: float) -> None:
        ticket = LaneTicket(lane, 0, 0)
        assert lanes.judge(A, ticket, 1, deadline=deadline, now=now) is LaneDecision.TAKE

    take(0, 300.0, 0.0)
    for second in range(1, 300):
        take(second, second + 30.0, float(second))
    assert len(lanes) <= 1 + 32
    assert lanes.judge(A, LaneTicket(0, 0, 0), 0, deadline=300.0, now=299.0) is LaneDecision.LATE


def test_a_lane_is_kept_until_its_last_deadline() -> None:
    lanes = ReceivedLanes(lanes_max=1)
    for number, deadline in enumerate((10.0, 20.0, 5.0)):
        assert judge(lanes, number, number, deadline=deadline) is LaneDecision.TAKE
    other = LaneTicket(2, 0, 0)
    for now in (11.0, 20.0):
        assert lanes.judge(A, other, 1, deadline=50.0, now=now) is LaneDecision.FULL
    assert judge(lanes, 1, 0, now=20.0) is LaneDecision.LATE
    assert lanes.judge(A, other, 1, deadline=50.0, now=FAR + 1) is LaneDecision.TAKE


def test_the_span_of_a_lane_is_bounded() -> None:
    assert judge(ReceivedLanes(), LANE_SPAN_MAX + 1, 0) is LaneDecision.FULL


def test_without_the_guard_every_number_is_taken() -> None:
    lanes = ReceivedLanes()
    assert judge(lanes, 5, 5) is LaneDecision.TAKE
    with in_force("lane-order"):
        assert judge(lanes, 4, 4) is LaneDecision.TAKE
        assert judge(lanes, 9, 5) is LaneDecision.TAKE
    assert judge(lanes, 4, 4) is LaneDecision.LATE


@given(st.lists(st.integers(0, 9), max_size=40))
def test_the_lowest_number_is_the_first_that_has_no_outcome(resolved: list[int]) -> None:
    lane = SentLane(3)
    numbers = [lane.begin() for _ in range(11)]
    assert numbers == list(range(11))
    for number in resolved:
        lane.resolved(number)
    lowest = min(set(numbers) - set(resolved))
    assert lane.ticket(10) == LaneTicket(3, 10, lowest)


class Network(RuleBasedStateMachine):
    """A sender, two leaders, and a network that copies, delays and reorders requests."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = SentLane(1)
        self.leaders = [ReceivedLanes(), ReceivedLanes()]
        self.open: dict[int, int] = {}
        """Numbers without an outcome, each with the number of its attempts."""
        self.in_flight: list[tuple[LaneTicket, int, int]] = []
        self.done: list[list[int]] = [[], []]

    @rule()
    def begin(self) -> None:
        if len(self.open) < 4:
            self.open[self.sent.begin()] = 0

    @rule(data=st.data(), leader=st.integers(0, 1))
    def send(self, data: st.DataObject, leader: int) -> None:
        if self.open:
            number = data.draw(st.sampled_from(sorted(self.open)))
            self.open[number] += 1
            self.in_flight.append((self.sent.ticket(number), self.open[number], leader))

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        if not self.in_flight:
            return
        ticket, attempt, leader = data.draw(st.sampled_from(self.in_flight))
        lanes = self.leaders[leader]
        if lanes.judge(A, ticket, attempt, deadline=FAR, now=0) is not LaneDecision.TAKE:
            return
        if ticket.number not in self.done[leader]:  # The leader stores a key once.
            self.done[leader].append(ticket.number)
        lanes.answered(A, ticket)
        if data.draw(st.booleans()):
            self.resolve(ticket.number)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.open:
            self.resolve(data.draw(st.sampled_from(sorted(self.open))))

    def resolve(self, number: int) -> None:
        self.open.pop(number, None)
        self.sent.resolved(number)

    @invariant()
    def order_holds_at_each_leader(self) -> None:
        for done in self.done:
            assert done == sorted(done)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_without_the_guard_the_order_is_lost() -> None:
    with in_force("lane-order"), pytest.raises(AssertionError):
        run_state_machine_as_test(
            Network,
            settings=settings(
                phases=[Phase.generate], deadline=None, max_examples=1000, derandomize=True
            ),
        )
