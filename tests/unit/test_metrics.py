import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.metrics import CONTENT_TYPE, OK, Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Parse the rendered text as Prometheus does; leave out the label ``node``."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("broker_"):
                assert labels.pop("node") == "7"
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def test_requests_are_counted_by_kind_and_code() -> None:
    metrics = Metrics("7")
    metrics.answered("publish", OK, 0.003)
    metrics.answered("publish", OK, 40.0)
    metrics.answered("publish", "overloaded", 0.0001)
    found = samples(metrics)
    assert found["broker_requests_total", (("code", "ok"), ("kind", "publish"))] == 2
    assert found["broker_requests_total", (("code", "overloaded"), ("kind", "publish"))] == 1
    assert found["broker_request_seconds_count", (("kind", "publish"),)] == 3
    assert found["broker_request_seconds_sum", (("kind", "publish"),)] == pytest.approx(40.0031)


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    metrics = Metrics("7")
    for seconds in (0.0005, 0.0006, 31.0):
        metrics.synced.observe(seconds)
    found = samples(metrics)
    assert found["broker_sync_seconds_bucket", (("le", "0.0005"),)] == 1
    assert found["broker_sync_seconds_bucket", (("le", "0.001"),)] == 2
    assert found["broker_sync_seconds_bucket", (("le", "30"),)] == 2
    assert found["broker_sync_seconds_bucket", (("le", "+Inf"),)] == 3


def test_only_listed_topics_get_a_label() -> None:
    metrics = Metrics("7", ["a/listed"])
    metrics.moved("publish", "a/listed", 2, 20)
    metrics.moved("publish", "a/other", 3, 30)
    found = samples(metrics)
    assert found["broker_messages_total", (("kind", "publish"),)] == 5
    assert found["broker_message_bytes_total", (("kind", "publish"),)] == 50
    named = [labels for name, labels in found if name == "broker_topic_messages_total"]
    assert named == [(("kind", "publish"), ("topic", "a/listed"))]


def test_batches_cache_sweeps_and_events_are_counted() -> None:
    metrics = Metrics("7")
    metrics.batched(requests=4, messages=900)
    metrics.cache_reads.add("hit")
    metrics.cache_reads.add("miss")
    metrics.swept.add("expired", 12)
    metrics.events.add("storage_reopened")
    found = samples(metrics)
    assert found["broker_batch_requests_sum", ()] == 4
    assert found["broker_batch_messages_sum", ()] == 900
    assert found["broker_cache_reads_total", (("kind", "hit"),)] == 1
    assert found["broker_cache_reads_total", (("kind", "miss"),)] == 1
    assert found["broker_swept_rows_total", (("kind", "expired"),)] == 12
    assert found["broker_events_total", (("kind", "storage_reopened"),)] == 1


def test_a_gauge_is_read_when_the_metrics_are_rendered() -> None:
    metrics, queue = Metrics("7"), [1, 2, 3]
    metrics.watch("queued_requests", "Requests that wait.", lambda: len(queue))
    assert samples(metrics)["broker_queued_requests", ()] == 3
    queue.pop()
    assert samples(metrics)["broker_queued_requests", ()] == 2


def test_a_gauge_can_not_be_registered_twice() -> None:
    metrics = Metrics("7")
    metrics.watch("queued_requests", "Requests that wait.", lambda: 0)
    with pytest.raises(ValueError, match="broker_queued_requests"):
        metrics.watch("queued_requests", "Again.", lambda: 0)


def test_nodes_of_one_process_do_not_share_metrics() -> None:
    one, other = Metrics("7", process=True), Metrics("7", process=True)
    one.events.add("x")
    assert ("broker_events_total", (("kind", "x"),)) not in samples(other)
    assert ("process_resident_memory_bytes", ()) in samples(other)


def test_the_content_type_is_plain_text() -> None:
    assert CONTENT_TYPE.startswith("text/plain")
