"""Common functions for the samples: values as JSON, and times on one day."""

import json
from datetime import UTC, datetime
from typing import Any

from broker.client import SyncClient
from broker.streams import Window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def publish_json(client: SyncClient, topic: str, *values: Any) -> None:
    """Publish values as JSON, in one request."""
    client.publish(topic, [json.dumps(value) for value in values])


def after_noon(seconds: int) -> str:
    """Return a time ``seconds`` after noon, such as 2026-01-01T12:00:05Z."""
    return text_of(round(NOON.timestamp() * 1000) + seconds * 1000)


def start_of(window: Window | None) -> str:
    """Return the start of a window, as text."""
    assert window is not None
    return text_of(window.start_ms)


def text_of(time_ms: int) -> str:
    """Return a time as text."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def time_of(value: dict[str, Any]) -> datetime:
    """Return the time from a value's field ``time``."""
    return datetime.fromisoformat(value["time"])
