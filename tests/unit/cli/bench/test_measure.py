from __future__ import annotations

from broker.cli.bench.measure import Measure
from broker.cli.bench.stamp import BYTES_MIN, moment_of, stamped
from broker.errors import Overloaded


def test_an_interval_counts_events_since_the_last_look() -> None:
    measure = Measure(10.0)
    measure.add(5, 500, 2000)
    first = measure.look(11.0)
    assert (first.seconds, first.messages, first.bytes, first.latencies.count) == (1.0, 5, 500, 5)
    assert "5 messages/s" in first.line
    assert "p50 2.0" in first.line
    second = measure.look(12.0)
    assert (second.messages, second.bytes, second.latencies.count) == (0, 0, 0)
    assert "p50" not in second.line


def test_the_summary_counts_all_intervals() -> None:
    measure = Measure(0.0)
    measure.add(10, 1000, 1000)
    measure.look(1.0)
    measure.add(10, 1000, 3000)
    measure.failed(Overloaded("busy"))
    told = measure.as_json(4.0)
    assert (told["messages"], told["messages_per_s"], told["bytes_per_s"]) == (20, 5.0, 500.0)
    assert told["errors"] == {"overloaded": 1}
    assert told["latency_ms"]["mean"] == 2.0


def test_a_stamp_is_found_in_stamped_payloads_alone() -> None:
    for size in (BYTES_MIN, 100):
        payload = stamped(size, 123_456)
        assert len(payload) == size
        assert moment_of(payload) == 123_456
    assert moment_of(b"") is None
    assert moment_of(b"x" * 100) is None
