"""The sink stores and publishes each row once, against a stub broker of lists."""

import pickle
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType

from broker.client.values import NewMessage, Settings
from broker.spark import sink
from broker.spark.format_options import SinkOptions, SinkProducer
from broker.spark.sink import TmsBatchWriter, TmsStreamWriter

VALUE = StructField("value", BinaryType())
ROWS = StructType([VALUE, StructField("topic", StringType()), StructField("ttl", IntegerType())])


class FakeStage:
    def __init__(self, identifier: str) -> None:
        self.id = identifier
        self.stored: list[tuple[bytes, int | None]] = []
        self.keys: list[str] = []

    def store(self, messages, *, ttl_s=None, idempotency_key=None) -> None:
        self.stored += [(message, ttl_s) for message in messages]
        self.keys.append(idempotency_key)


class FakeBroker:
    """Topics, stages, and the last number of each producer."""

    def __init__(self) -> None:
        self.topics: dict[str, list[tuple[bytes, int | None]]] = {}
        self.stages: dict[tuple[str, str], FakeStage] = {}
        self.numbers: dict[tuple[str, str], int] = {}

    @contextmanager
    def stage(self, topic: str):
        stage = FakeStage(f"s{len(self.stages)}")
        self.stages[topic, stage.id] = stage
        yield stage

    def publish_stages(self, topic, stages, *, producer) -> None:
        if self.is_new(topic, producer):
            log = self.topics.setdefault(topic, [])
            for stage in stages:
                log += self.stages.pop((topic, stage)).stored

    def publish(self, topic, messages, *, producer) -> None:
        if self.is_new(topic, producer):
            self.topics.setdefault(topic, []).extend((message, None) for message in messages)

    def is_new(self, topic, producer) -> bool:
        identifier, number = producer
        is_new = number > self.numbers.get((topic, identifier), -1)
        if is_new:
            self.numbers[topic, identifier] = number
        return is_new

    def payloads(self, topic: str) -> list[bytes]:
        return [payload for payload, _ in self.topics.get(topic, [])]


@pytest.fixture(params=[0, 3, 1 << 16], ids=["staged", "some", "few"])
def broker(request, monkeypatch) -> FakeBroker:
    """A broker; each task stores all, some or none of its rows itself."""
    monkeypatch.setattr(sink, "FEW_BYTES_MAX", request.param)
    return FakeBroker()


def options(topic: str | None = "t", producer: SinkProducer | None = None) -> SinkOptions:
    return SinkOptions(settings=Settings(), topic=topic, producer=producer)


def batch(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


@pytest.fixture
def stream(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    """Write a micro-batch as Spark does: each task by a copy, the commit by another writer."""

    def make() -> TmsStreamWriter:
        return TmsStreamWriter(options(), StructType([VALUE]), lambda _: broker)

    def write(number: int, *tasks: list[pa.RecordBatch]) -> None:
        monkeypatch.setattr(sink, "producer_of_task", lambda: SinkProducer("query", number))
        staged = [pickle.loads(pickle.dumps(make().write(iter(task)))) for task in tasks]
        make().commit(staged, number)

    return write


def test_tasks_are_published_in_the_order_of_partitions(broker, stream) -> None:
    stream(0, [batch(b"1", b"2"), batch(b"3")], [], [batch(b"4")])
    assert broker.payloads("t") == [b"1", b"2", b"3", b"4"]


def test_a_batch_that_is_run_again_is_published_once(broker, stream) -> None:
    stream(0, [batch(b"1")])
    stream(1, [batch(b"2")])
    stream(1, [batch(b"2")])
    stream(0, [batch(b"1")])
    stream(4, [batch(b"3")])
    assert broker.payloads("t") == [b"1", b"2", b"3"]


def test_an_empty_batch_publishes_nothing(broker, stream) -> None:
    stream(0, [])
    assert broker.topics == {}
    assert broker.numbers == {}


def test_messages_of_a_failed_attempt_are_never_published(broker, stream) -> None:
    def fails():
        yield batch(b"lost")
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        stream(0, [batch(b"1")], fails())
    assert broker.topics == {}
    stream(0, [batch(b"1")], [batch(b"2")])
    assert broker.payloads("t") == [b"1", b"2"]


def test_a_commit_of_another_batch_is_refused(broker, monkeypatch) -> None:
    monkeypatch.setattr(sink, "producer_of_task", lambda: SinkProducer("query", 3))
    writer = TmsStreamWriter(options(), StructType([VALUE]), lambda _: broker)
    staged = writer.write(iter([batch(b"1")]))
    with pytest.raises(AssertionError, match="tasks of batch 3, not of 4"):
        writer.commit([staged], 4)
    with pytest.raises(AssertionError, match="every task"):
        writer.commit([staged, None], 3)


def test_rows_go_to_their_topics_with_their_lives(broker) -> None:
    writer = TmsBatchWriter(options(topic=None), ROWS, lambda _: broker)
    rows = pa.record_batch(
        [
            pa.array([b"1", b"2", b"3", b"4"], pa.binary()),
            pa.array(["x", "y", "x", "x"]),
            pa.array([5, None, 5, 6], pa.int32()),
        ],
        names=["value", "topic", "ttl"],
    )
    writer.commit([writer.write(iter([rows])), writer.write(iter([rows]))])
    assert broker.topics == {"x": [(b"1", 5), (b"3", 5), (b"4", 6)] * 2, "y": [(b"2", None)] * 2}


def test_keys_and_headers_are_stored_with_their_messages(broker) -> None:
    headers = MapType(StringType(), BinaryType())
    columns = StructType([VALUE, StructField("key", BinaryType()), StructField("headers", headers)])
    writer = TmsBatchWriter(options(), columns, lambda _: broker)
    rows = pa.record_batch(
        [
            pa.array([b"1", b"2", b"3"], pa.binary()),
            pa.array([b"k", None, None], pa.binary()),
            pa.array([None, [("h", b"")], None], pa.map_(pa.string(), pa.binary())),
        ],
        names=["value", "key", "headers"],
    )
    staged = pickle.loads(pickle.dumps(writer.write(iter([rows]))))
    writer.commit([staged, writer.write(iter([batch(b"4")]))])
    found = [message for message, _ in broker.topics["t"]]
    assert found == [NewMessage(b"1", b"k"), NewMessage(b"2", None, {"h": b""}), b"3", b"4"]


def test_a_batch_that_reached_only_one_of_its_topics_is_completed(broker) -> None:
    rows = pa.record_batch(
        [pa.array([b"1", b"2"], pa.binary()), pa.array(["x", "y"])], names=["value", "topic"]
    )
    columns = StructType([VALUE, StructField("topic", StringType())])

    def run() -> None:
        given = options(topic=None, producer=SinkProducer("query", 7))
        writer = TmsBatchWriter(given, columns, lambda _: broker)
        writer.commit([writer.write(iter([rows]))])

    honest = broker.is_new

    def fails_at_y(topic: str, producer: SinkProducer) -> bool:
        if topic == "y":
            raise OSError
        return honest(topic, producer)

    broker.is_new = fails_at_y
    with pytest.raises(OSError):  # noqa: PT011
        run()
    broker.is_new = honest
    run()
    assert (broker.payloads("x"), broker.payloads("y")) == ([b"1"], [b"2"])


def test_a_batch_query_with_a_key_is_published_once(broker) -> None:
    def run(producer: SinkProducer | None) -> None:
        writer = TmsBatchWriter(options(producer=producer), StructType([VALUE]), lambda _: broker)
        writer.commit([writer.write(iter([batch(b"1")]))])

    run(SinkProducer("load", 0))
    run(SinkProducer("load", 0))
    assert broker.payloads("t") == [b"1"]
    run(None)
    run(None)
    assert broker.payloads("t") == [b"1"] * 3


def test_every_store_has_a_key_of_its_own(broker, monkeypatch) -> None:
    monkeypatch.setattr(sink, "FEW_BYTES_MAX", 0)
    writer = TmsBatchWriter(options(), StructType([VALUE]), lambda _: broker)
    writer.write(iter([batch(b"1"), batch(b"2")]))
    (stage,) = broker.stages.values()
    assert len(set(stage.keys)) == 2
    assert None not in stage.keys


def test_outside_of_a_stream_a_batch_has_no_number() -> None:
    with pytest.raises(RuntimeError, match="no streaming query"):
        sink.producer_of_task()


def test_few_rows_are_published_without_a_stage(broker, stream, monkeypatch) -> None:
    monkeypatch.setattr(sink, "FEW_BYTES_MAX", 100)
    begun = broker.stage
    broker.stage = None
    stream(0, [batch(b"1")], [], [batch(b"2"), batch(b"3")])
    assert broker.payloads("t") == [b"1", b"2", b"3"]
    broker.stage = begun
    # One task has many: the others' few are stored, too, for there is one publish.
    stream(1, [batch(b"4")], [batch(bytes(200))], [batch(b"5")])
    assert broker.payloads("t")[3:] == [b"4", bytes(200), b"5"]


def test_few_rows_of_many_tasks_are_stored_in_stages(broker, stream, monkeypatch) -> None:
    monkeypatch.setattr(sink, "FEW_BYTES_MAX", 10)
    published = broker.publish
    broker.publish = None
    stream(0, *([batch(b"12345")] for _ in range(21)))
    assert broker.payloads("t") == [b"12345"] * 21
    broker.publish = published
