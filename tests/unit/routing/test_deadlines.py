import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.dispatch import parse_timeout_s
from broker.errors import BadRequest, Overloaded
from broker.operations.parameters import REQUEST_TIMEOUT_S_MAX
from broker.routing import nodeheaders
from broker.routing.nodeheaders import from_the_wire, on_the_wire_ms
from broker.testing.mutants import in_force

SECONDS = st.floats(0, 1e6)
WALL = st.integers(0, 1 << 45)


@given(left_s=st.floats(0.001, 299), monotonic=SECONDS, now_ms=WALL, there=SECONDS)
def test_a_deadline_is_the_same_moment_on_another_nodes_clock(left_s, monotonic, now_ms, there):
    wire_ms = on_the_wire_ms(monotonic + left_s, monotonic, now_ms)
    assert from_the_wire(wire_ms, there, now_ms) - there == pytest.approx(left_s, abs=0.0011)


@given(late_ms=st.integers(0, 10**9), now_ms=WALL, monotonic=SECONDS)
def test_a_request_after_its_deadline_is_refused(late_ms, now_ms, monotonic):
    with pytest.raises(Overloaded) as refused:
        from_the_wire(now_ms - late_ms, monotonic, now_ms)
    assert refused.value.outcome == "refused"


def test_without_the_guard_a_late_request_is_taken():
    with in_force("deadline"):
        assert nodeheaders.from_the_wire(0, 5.0, 1000) > 5.0


@given(ahead_ms=st.integers(300_000, 1 << 45))
def test_a_far_deadline_is_limited(ahead_ms):
    assert from_the_wire(ahead_ms, 0.0, 0) <= REQUEST_TIMEOUT_S_MAX


@pytest.mark.parametrize("text", ["1", "0.5", "300", "1e2", ".5", "5."])
def test_a_timeout_is_a_positive_number_of_seconds(text):
    assert parse_timeout_s(text) == float(text)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "nan", "inf", "301", "5 s", "\u0665", "1" * 40, "1_0", " 7 "]
)
def test_another_timeout_is_refused(text):
    with pytest.raises(BadRequest, match="Request-Timeout"):
        parse_timeout_s(text)
