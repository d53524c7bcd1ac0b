"""The ranges of micro-batches, against a stub topic that is a list."""

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from broker.client.values import Settings, TopicRange
from broker.errors import TopicRecreated
from broker.model import LOG_KEY_MIN, Message, MessageId, Snapshot, log_key
from broker.places import Place
from broker.spark import task_ranges
from broker.spark.beats import Beat
from broker.spark.format_options import SourceOptions
from broker.spark.offsets import Offset, SourceOffset
from broker.spark.record_batches import SCHEMA, arrow_schema
from broker.spark.stream import TmsStreamReader
from broker.spark.task_ranges import PART_MESSAGES, PARTS_A_CALL

COLUMNS = arrow_schema(SCHEMA)
AT = {"v": 2, "topic": "default/t", "generation": 1}


def ident(number: int) -> MessageId:
    return log_key(number, 0) + LOG_KEY_MIN


class FakeTopic:
    """Messages with the ids 1, 2, 3 …, of ten bytes each; the first ``expired`` of them are gone."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.expired = 0
        self.generation = 1
        self.calls: list[str] = []

    def range(self, topic, *, after=None, through=None, messages=None, size=None, parts=1):
        self.calls.append("range")
        assert messages is None or messages >= 1, "the broker refuses 0"
        assert 1 <= parts <= PARTS_A_CALL, "the broker divides into so many"
        begin = self.expired if after is None else self._number(after)
        end = self.count if through is None else self._number(through)
        first = max(begin, self.expired)
        most = min(messages or self.count, (size or 10 * self.count) // 10)
        last = max(first, min(end, self.count, first + most))
        count = last - first
        ends = sorted({first + count * part // parts for part in range(1, parts + 1)} - {first})
        return TopicRange(
            earliest=ident(self.expired),
            latest=ident(self.count),
            after=ident(begin),
            through=ident(last),
            messages=count,
            size=10 * count,
            lost=max(0, self.expired - begin),
            ends=[ident(end) for end in ends],
            generation=self.generation,
        )

    def _number(self, place: MessageId | Place) -> int:
        if isinstance(place, Place) and place.generation not in (None, self.generation):
            raise TopicRecreated.between("t", place.generation, self.generation)
        return int.from_bytes((place.id if isinstance(place, Place) else place)[:8], "big")

    def poll(self, topic, start, *, limit, wait_s):
        self.calls.append(f"poll {wait_s:g}")
        self._number(start)
        start = start.id
        ids = [ident(number) for number in range(1, self.count + 1)]
        return [Message(found, b"") for found in ids if found >= start][:limit]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _given(topic: FakeTopic, _: Settings) -> FakeTopic:
    return topic


@pytest.fixture
def topic() -> FakeTopic:
    return FakeTopic()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def made(topic: FakeTopic, clock: Clock):
    def make(**options) -> TmsStreamReader:
        given = SourceOptions(settings=Settings(), topic="t", start="latest")
        return TmsStreamReader(replace(given, **options), COLUMNS, clock, lambda _: topic)

    return make


def again(offset: Offset) -> Offset:
    """Return an offset as Spark passes it: parsed from its stored text."""
    return json.loads(json.dumps(offset))


def beats(reader: TmsStreamReader, start: Offset, end: Offset) -> list[dict[str, object]]:
    """Return the heart-beat rows of a micro-batch."""
    parts = reader.partitions(again(start), again(end))
    found = [part for part in parts if isinstance(part.value, Beat)]
    batches = [batch for part in found for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def ranges(reader: TmsStreamReader, start: Offset, end: Offset) -> list[tuple[int, int]]:
    parts = [partition.value for partition in reader.partitions(again(start), again(end))]
    return [
        (int.from_bytes(part.after[:8], "big"), int.from_bytes(part.through[:8], "big"))
        for part in parts
    ]


ALL = ReadAllAvailable()


def test_a_new_query_begins_at_the_same_place_however_often_spark_asks(made, topic) -> None:
    topic.count = 5
    reader = made()
    start = reader.initialOffset()
    topic.count = 9
    assert reader.initialOffset() == start
    assert ranges(reader, start, reader.latestOffset(start, ALL)) == [(5, 9)]


def test_a_crash_in_the_first_batch_loses_nothing_behind_latest(made, topic) -> None:
    topic.count = 5
    first = made()
    start = first.initialOffset()
    topic.count = 9
    end = first.latestOffset(start, ALL)
    topic.count = 20
    second = made()
    later = second.initialOffset()
    assert later != start
    assert ranges(second, later, end) == [(5, 9)]
    assert ranges(second, end, second.latestOffset(again(end), ALL)) == [(9, 20)]


def test_a_start_at_earliest_skips_messages_that_expire_before_the_first_batch(made, topic) -> None:
    topic.count, topic.expired = 10, 2
    reader = made(start="earliest")
    start = reader.initialOffset()
    topic.expired = 4
    end = reader.latestOffset(start, ALL)
    assert ranges(reader, start, end) == [(4, 10)]


def test_a_start_at_a_time_skips_expired_messages_and_a_start_at_an_id_does_not(
    made, topic
) -> None:
    topic.count, topic.expired = 10, 4
    by_time = made(start=SourceOffset(ident(1), is_time=True))
    start = by_time.initialOffset()
    assert ranges(by_time, start, by_time.latestOffset(start, ALL)) == [(4, 10)]
    by_id = made(start=SourceOffset(ident(1)))
    start = by_id.initialOffset()
    end = by_id.latestOffset(start, ALL)
    with pytest.raises(ValueError, match="At least 3 messages"):
        by_id.partitions(start, end)


def test_messages_that_expired_unread_fail_the_query(made, topic) -> None:
    topic.count = 10
    reader = made(start="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    topic.count, topic.expired = 20, 15
    later = reader.latestOffset(end, ALL)
    with pytest.raises(ValueError, match=r"At least 5 messages .* failOnDataLoss=false"):
        reader.partitions(end, later)
    lenient = made(start="earliest", fail_on_data_loss=False)
    assert ranges(lenient, end, later) == [(10, 20)]


def test_limits_bound_a_batch_unless_spark_wants_all(made, topic) -> None:
    topic.count = 100
    reader = made(start=SourceOffset(ident(0)), messages_max=30)
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    start = reader.initialOffset()
    assert ranges(reader, start, reader.latestOffset(start, ReadMaxRows(30))) == [(0, 30)]
    assert ranges(reader, start, reader.latestOffset(start, ALL)) == [(0, 100)]
    by_size = made(start=SourceOffset(ident(0)), bytes_max=250)
    assert by_size.getDefaultReadLimit() == ReadMaxBytes(250)
    assert ranges(by_size, start, by_size.latestOffset(start, ReadMaxBytes(250))) == [(0, 25)]
    both = made(start=SourceOffset(ident(0)), bytes_max=250, messages_max=30)
    assert ranges(both, start, both.latestOffset(start, ReadMaxRows(30))) == [(0, 25)]


def test_without_new_messages_the_same_offset_is_returned_and_the_next_call_waits(
    made, topic
) -> None:
    topic.count = 5
    reader = made(start="earliest")
    end = again(reader.latestOffset(reader.initialOffset(), ALL))
    topic.calls.clear()
    assert reader.latestOffset(end, ALL) is end
    assert reader.latestOffset(end, ALL) is end
    assert reader.latestOffset(end, ALL) is end
    assert topic.calls == ["range", "poll 0.2", "poll 0.2"]
    topic.count = 6
    assert ranges(reader, end, reader.latestOffset(end, ALL)) == [(5, 6)]


def test_a_progress_report_sends_no_request(made, topic) -> None:
    topic.count = 5
    reader = made(start="earliest")
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ALL)
    topic.calls.clear()
    assert reader.reportLatestOffset() == {**AT, "id": ident(5).hex()}
    assert topic.calls == []


def test_a_small_batch_is_held_until_it_is_large_or_old_enough(made, topic, clock) -> None:
    topic.count = 3
    reader = made(start="earliest", messages_min=10, delay_s_max=0.05)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["id"] == ident(3).hex(), "the first one is not held"
    topic.count = 8
    assert reader.latestOffset(end, ALL) is end
    assert reader.latestOffset(end, ALL) is end
    topic.count = 13
    large = reader.latestOffset(end, ALL)
    assert large["id"] == ident(13).hex()
    topic.count = 14
    assert reader.latestOffset(large, ALL) is large
    clock.now += 0.06
    assert reader.latestOffset(large, ALL)["id"] == ident(14).hex()


def test_available_now_ends_at_the_messages_that_existed_in_limited_batches(made, topic) -> None:
    topic.count = 25
    reader = made(start="earliest", messages_max=10, messages_min=100)
    reader.prepareForTriggerAvailableNow()
    topic.count = 50
    offset, found = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, ReadMaxRows(10))) is not offset:
        found += ranges(reader, offset, end)
        offset = again(end)
    assert found == [(0, 10), (10, 20), (20, 25)]
    assert not any(call.startswith("poll") for call in topic.calls)


def test_a_large_batch_has_parts_and_a_small_one_does_not(made, topic) -> None:
    topic.count = 1000
    reader = made(start="earliest")
    start = reader.initialOffset()
    assert len(ranges(reader, start, reader.latestOffset(start, ALL))) == 1
    divided = made(start="earliest", parts_min=4)
    assert ranges(divided, start, divided.latestOffset(start, ALL)) == [
        (0, 250),
        (250, 500),
        (500, 750),
        (750, 1000),
    ]
    topic.count = 3 * PART_MESSAGES
    assert len(ranges(reader, start, reader.latestOffset(start, ALL))) == 4


def test_more_parts_than_the_broker_divides_into_at_once(made, topic) -> None:
    topic.count = 2_500
    reader = made(start="earliest", part_messages_max=10)
    start = reader.initialOffset()
    found = ranges(reader, start, reader.latestOffset(start, ALL))
    assert found == [(begin, begin + 10) for begin in range(0, 2_500, 10)]


@pytest.mark.parametrize("count", [1, 3, 150])
def test_a_range_has_at_most_one_part_for_each_message(made, topic, count: int) -> None:
    topic.count = count
    reader = made(start="earliest", parts_min=40 * count + 200)
    start = reader.initialOffset()
    found = ranges(reader, start, reader.latestOffset(start, ALL))
    assert found == [(begin, begin + 1) for begin in range(count)]


def test_a_reader_can_be_pickled_after_it_was_used(topic) -> None:
    options = SourceOptions(settings=Settings(), topic="t", start=SourceOffset(ident(3)))
    reader = TmsStreamReader(options, COLUMNS, connect=partial(_given, topic))
    start = reader.initialOffset()
    assert pickle.loads(pickle.dumps(reader)).initialOffset() == start


def test_a_checkpoint_of_an_earlier_topic_of_this_name_is_refused(made, topic) -> None:
    topic.count = 5
    reader = made(start="earliest", fail_on_data_loss=False)
    end = again(reader.latestOffset(reader.initialOffset(), ALL))
    later = again(made(start="earliest").latestOffset(end, ALL))
    topic.generation, topic.count = 2, 9
    restarted = made(start="earliest", fail_on_data_loss=False)
    for use in (
        lambda: reader.latestOffset(end, ALL),
        lambda: restarted.latestOffset(end, ALL),
        lambda: restarted.partitions(reader.initialOffset(), end),
        lambda: restarted.partitions(end, {**later, "id": ident(7).hex()}),
    ):
        with pytest.raises(ValueError, match=r"generation 1.*generation 2.*new checkpoint"):
            use()
    assert made(start="earliest").initialOffset()["generation"] == 2


def test_a_checkpoint_of_another_topic_is_refused(made, topic) -> None:
    topic.count = 5
    reader = made(start="earliest")
    end = again(reader.latestOffset(reader.initialOffset(), ALL))
    other = made(start="earliest", topic="other")
    for use in (
        lambda: other.latestOffset(end, ALL),
        lambda: other.partitions(other.initialOffset(), end),
        lambda: other.partitions(end, end),
        lambda: other.partitions(end, {**end, "beat": 7}),
    ):
        with pytest.raises(ValueError, match=r"default/t, and the query reads default/other"):
            use()
    same = made(start="earliest", topic="default/t")
    assert same.latestOffset(end, ALL) is end


def test_an_offset_without_a_generation_is_refused(made, topic) -> None:
    topic.count = 5
    with pytest.raises(ValueError, match="new checkpoint"):
        made().latestOffset({"v": 1, "id": ident(3).hex()}, ALL)


class TestHeartBeats:
    """The latest id is of 5 ms since 1970, so beats come soon after that."""

    @pytest.fixture
    def beating(self, made, topic):
        topic.count = 5

        def make(**options) -> TmsStreamReader:
            return made(**{"start": "earliest", "beat_interval_s": 2.0, **options})

        return make

    @pytest.fixture
    def silent(self, beating) -> tuple[TmsStreamReader, Offset]:
        """Return a reader that has learned that no message lies behind the offset."""
        reader = beating()
        end = again(reader.latestOffset(reader.initialOffset(), ALL))
        assert reader.latestOffset(end, ALL) is end
        return reader, end

    def test_a_beat_comes_after_each_interval_of_silence(self, silent, clock, topic) -> None:
        reader, start = silent
        clock.now += 1.9
        assert reader.latestOffset(start, ALL) is start
        clock.now += 0.1
        beat = again(reader.latestOffset(start, ALL))
        assert beat == {**AT, "id": ident(5).hex(), "beat": 5 + 2000}
        assert reader.latestOffset(beat, ALL) is beat
        clock.now += 2.5
        later = again(reader.latestOffset(beat, ALL))
        assert later["beat"] == 5 + 4500
        assert reader.latestOffset(later, ALL) is later
        assert reader.reportLatestOffset() == {**AT, "id": ident(5).hex()}

    def test_a_beat_is_one_row_with_the_columns_that_are_asked_for(self, silent, clock) -> None:
        reader, start = silent
        clock.now += 2
        beat = reader.latestOffset(start, ALL)
        row = {
            "id": ident(5),
            "value": None,
            "topic": "t",
            "timestamp": datetime.fromtimestamp(2.005, UTC),
            "key": None,
            "headers": None,
        }
        assert beats(reader, start, beat) == [row]
        assert beats(reader, start, beat) == [row], "a batch that is repeated is the same"
        (part,) = reader.partitions(start, beat)
        (batch,) = reader.read(part)
        assert batch.schema == COLUMNS
        some = arrow_schema(StructType([SCHEMA["value"], SCHEMA["topic"]]))
        narrow = TmsStreamReader(SourceOptions(settings=Settings(), topic="t"), some)
        (batch,) = narrow.read(pickle.loads(pickle.dumps(part)))
        assert batch.to_pylist() == [{"value": None, "topic": "t"}]
        assert batch.schema == some

    def test_a_message_ends_the_silence_and_the_next_one_begins_with_it(
        self, silent, clock, topic
    ) -> None:
        reader, start = silent
        clock.now += 2
        beat = again(reader.latestOffset(start, ALL))
        topic.count = 9
        messages = again(reader.latestOffset(beat, ALL))
        assert "beat" not in messages
        assert ranges(reader, beat, messages) == [(5, 9)]
        clock.now += 60
        assert reader.latestOffset(messages, ALL) is messages, "told just now"
        clock.now += 2
        assert reader.latestOffset(messages, ALL)["beat"] == 9 + 2000

    def test_a_message_that_comes_with_the_beat_comes_before_it(self, silent, clock, topic) -> None:
        reader, start = silent
        clock.now += 2
        topic.count = 6
        messages = reader.latestOffset(start, ALL)
        assert ranges(reader, start, messages) == [(5, 6)]
        assert beats(reader, start, messages) == []

    def test_a_beat_counts_from_the_answer_to_the_question(self, silent, clock, topic) -> None:
        """A message that arrives while the request is in flight may be older than its answer."""
        reader, start = silent
        clock.now += 2
        answer = topic.range

        def slow(*args, **options):
            clock.now += 30
            return answer(*args, **options)

        topic.range = slow
        assert reader.latestOffset(start, ALL)["beat"] == 5 + 2000

    def test_the_wait_for_messages_ends_when_a_beat_is_due(self, silent, clock, topic) -> None:
        reader, start = silent
        clock.now += 1.9375
        topic.calls.clear()
        assert reader.latestOffset(start, ALL) is start
        clock.now += 0.0625
        assert reader.latestOffset(start, ALL) is not start
        assert topic.calls == ["poll 0.0625", "range"]

    def test_after_a_restart_beats_go_on_behind_the_last_one(self, silent, clock, beating) -> None:
        reader, start = silent
        clock.now += 3600
        beat = again(reader.latestOffset(start, ALL))
        second = beating()
        assert second.latestOffset(beat, ALL) is beat
        assert beats(second, start, beat) == beats(reader, start, beat)
        clock.now += 2
        assert second.latestOffset(beat, ALL)["beat"] == beat["beat"] + 2000

    def test_a_checkpoint_outlives_the_option(self, silent, clock, topic, beating) -> None:
        reader, start = silent
        clock.now += 2
        beat = again(reader.latestOffset(start, ALL))
        without = beating(beat_interval_s=None)
        assert len(beats(without, start, beat)) == 1
        assert without.latestOffset(beat, ALL) is beat
        clock.now += 60
        assert without.latestOffset(beat, ALL) is beat
        topic.count = 7
        assert ranges(without, beat, without.latestOffset(beat, ALL)) == [(5, 7)]

    def test_a_new_query_may_begin_with_a_beat(self, beating, clock, topic) -> None:
        reader = beating(start="latest")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) is start
        clock.now += 2
        beat = reader.latestOffset(start, ALL)
        assert beat == {**beat, "id": ident(5).hex(), "from": ident(5).hex(), "beat": 2005}
        topic.count = 8
        second = beating(start="latest")
        later = second.initialOffset()
        assert len(second.partitions(later, beat)) == len(beats(second, later, beat)) == 1
        assert ranges(second, beat, second.latestOffset(again(beat), ALL)) == [(5, 8)]

    def test_an_empty_topic_has_no_beat(self, beating, clock, topic) -> None:
        topic.count = 0
        reader = beating()
        start = reader.initialOffset()
        for _ in range(3):
            assert reader.latestOffset(start, ALL) is start
            clock.now += 5

    def test_available_now_has_no_beat(self, beating, clock) -> None:
        reader = beating()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(reader.initialOffset(), ALL)
        for _ in range(3):
            assert reader.latestOffset(end, ALL) is end
            clock.now += 5

    def test_messages_that_are_held_are_no_silence(
        self, beating, clock, topic, monkeypatch
    ) -> None:
        """A transaction may see them later, and they are older than a beat would be."""
        monkeypatch.setattr(task_ranges, "seen_through", lambda client, options, found: ident(3))
        snapshot = Snapshot(transaction_id=9, read_pointer=5)
        reader = beating(snapshot=snapshot)
        end = again(reader.latestOffset(reader.initialOffset(), ALL))
        assert end["id"] == ident(3).hex()
        for _ in range(3):
            assert reader.latestOffset(end, ALL) is end
            clock.now += 5
