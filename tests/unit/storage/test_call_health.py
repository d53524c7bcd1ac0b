from itertools import count

from broker.storage.call_health import CallHealth, StorageHealth


def test_calls_are_counted_when_they_end() -> None:
    health = CallHealth(count(100).__next__)
    assert health.so_far == StorageHealth(0, 0, None, None, None)
    health.ended(None, None)
    health.ended("refused", "no gateway answers")
    assert health.so_far == StorageHealth(2, 1, 100, 101, "no gateway answers")
    health.ended(None, None)
    assert health.so_far == StorageHealth(3, 1, 102, 101, "no gateway answers")


def test_only_failures_of_storage_count_as_failed_calls() -> None:
    health = CallHealth(count(100).__next__)
    health.ended(None, None)
    health.ended("cancelled", None)
    health.ended("cut", "TTransportException")
    health.ended("silent", None)
    assert health.so_far == StorageHealth(3, 2, 100, 102, "silent")
