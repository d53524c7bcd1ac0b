"""After a message of a clock that was far ahead, the operator is told that new ones get a time in the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from structlog.testing import capture_logs

from broker.errors import Fenced
from broker.model import TopicId, timestamp_of
from tests.kit.bench import TOPIC, Bench

YEARS_MS = 10 * 365 * 24 * 3_600_000


def warnings(lines: Sequence[Mapping[str, object]]) -> list[object]:
    return [line["topic"] for line in lines if "time in the future" in str(line["event"])]


async def test_ids_ahead_of_the_clock_are_told_once_and_counted(bench: Bench) -> None:
    with capture_logs() as lines:
        bench.clock.step(YEARS_MS)
        await bench.create()
        await bench.publish(b"of 2036")
        assert (warnings(lines), len(bench.around.ids_ahead)) == ([], 0)
        bench.clock.step(-YEARS_MS)
        for _ in range(3):
            last = await bench.publish(b"m")
        assert timestamp_of(last.first) > bench.clock.now_ms() + YEARS_MS // 2
        assert warnings(lines) == [str(TOPIC)]
        assert len(bench.around.ids_ahead) == 1
        bench.leader().end(Fenced("let go"))
        assert len(bench.around.ids_ahead) == 0
        bench.restart()
        await bench.publish(b"m")
        assert warnings(lines) == [str(TOPIC)] * 2
        assert lines[-1]["ahead_s"] == YEARS_MS // 1000


async def test_a_topic_created_again_is_still_ahead_and_one_with_another_name_is_not(
    bench: Bench,
) -> None:
    bench.clock.step(YEARS_MS)
    await bench.create()
    await bench.publish(b"of 2036")
    bench.clock.step(-YEARS_MS)
    await bench.topics.delete(TOPIC)
    await bench.create()
    again = await bench.publish(b"m")
    assert timestamp_of(again.first) > bench.clock.now_ms() + YEARS_MS // 2
    other = TopicId(TOPIC.namespace, "other")
    await bench.create(other)
    new = await bench.publish(b"m", topic=other)
    assert abs(timestamp_of(new.first) - bench.clock.now_ms()) < 10


async def test_the_lead_of_a_busy_topic_is_no_news(bench: Bench) -> None:
    await bench.create()
    with capture_logs() as lines:
        for _ in range(3):
            await bench.publish(*[b"m"] * 5000)
    assert lines == []
