"""The messages that all sides read: orders and payments, as JSON of about 100 bytes."""

from __future__ import annotations

import orjson

SCHEMA = "user STRING, number BIGINT, amount DOUBLE, t BIGINT, note STRING"
USERS = 1000
BYTES = 100
BEGAN_MS = 1_700_000_000_000
STEP_MS = 1
"""The event time between two messages: a topic has some minutes of event time."""


def payload(number: int) -> bytes:
    """Return a message. Users take turns, and about every second amount is above 500."""
    value = {
        "user": f"u{number * 7919 % USERS:04d}",
        "number": number,
        "amount": number * 7919 % 1000 + 0.25,
        "t": BEGAN_MS + number * STEP_MS,
        "note": "",
    }
    value["note"] = "x" * (BYTES - len(orjson.dumps(value)))
    return orjson.dumps(value)
