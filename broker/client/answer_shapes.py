"""The shapes of the JSON objects that a call returns as they are, or whose fields a command shows.

Any JSON service may answer in the broker's place, with an object of another shape. It must not reach the caller: it would
end as a KeyError there, or as the figures of a topic. An object fits if it has all the fields of its shape; it may have more.
A shape is a type, a tuple of shapes of which one fits, a list with the shape of each element, or a dict with the shape of
each field. The shapes follow the broker's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.client import protocol
from broker.client.protocol import Reply

NONE: Final = type(None)
_TEXT: Final = (str, NONE)
_WHOLE: Final = (int, NONE)
_NUMBER: Final = (int, float)
_COUNT: Final = {"value": int, "estimate": bool}
_END: Final = ({"id": str, "time": str}, NONE)

STATS: Final = {
    "messages": _COUNT,
    "bytes": _COUNT,
    "first": _END,
    "last": _END,
    "rates": {"publish_per_s": _NUMBER, "poll_per_s": _NUMBER},
}
BLOCKERS: Final = {
    "blockers": [
        {
            "transaction": str,
            "write_pointer": str,
            "first": {"id": str, "time": str},
            "since_s": _NUMBER,
            "messages": int,
            "waiting": int,
            "state": _TEXT,
            "client": _TEXT,
            "expires_at": _TEXT,
            "advice": str,
        }
    ],
    "complete": bool,
    "service_problem": _TEXT,
}
TRANSACTIONS: Final = {
    "in_progress": [
        {
            "id": str,
            "type": str,
            "started_ms": int,
            "expires_ms": int,
            "client": _TEXT,
            "name": _TEXT,
            "checkpoints": list,
        }
    ],
    "in_progress_count": int,
    "committing": int,
    "invalid": int,
}
TRANSACTION: Final = {"id": str, "state": str}
RESET: Final = {"in_progress": int, "invalid": int}
PRUNE_PLAN: Final = {
    "invalid": int,
    "prunable": int,
    "oldest_prunable": _TEXT,
    "newest_prunable": _TEXT,
    "oldest_left": _TEXT,
    "reason": _TEXT,
    "unpassed": ({"namespace": str, "topic": str, "generation": int, "page": str}, NONE),
}
PRUNED: Final = {**PRUNE_PLAN, "removed": int}
LEADER: Final = {"node": _WHOLE, "url": _TEXT, "epoch": _WHOLE}
CLUSTER: Final = {
    "asked": int,
    "contact": str,
    "nodes": [
        {
            "node": int,
            "url": str,
            "version": str,
            "state": str,
            "problem": _TEXT,
            "view": (
                {
                    "slots_led": int,
                    "topics_led": int,
                    "topics": ([{"topic": str, "epoch": int}], NONE),
                    "zookeeper": {"contact": str},
                    "storage": {
                        "calls": int,
                        "errors": int,
                        "last_success": _TEXT,
                        "last_failure": _TEXT,
                        "last_error": _TEXT,
                    },
                    "clock_skew_ms": _WHOLE,
                    "uptime_s": _NUMBER,
                },
                NONE,
            ),
        }
    ],
    "drained": ([int], NONE),
    "pins": _WHOLE,
    "problem": _TEXT,
}
DRAINED: Final = {"node": int, "drained": bool, "changed": bool}
PINS: Final = {"pins": [{"topic": str, "node": int, "lives": bool}]}
PINNED: Final = {"topic": str, "node": _WHOLE, "changed": bool}


def fits(value: object, shape: object) -> bool:
    """Return whether a JSON value has a shape."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            name in value and fits(value[name], part) for name, part in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    assert isinstance(shape, type)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def read_as(shape: object) -> Callable[[Reply], dict[str, Any]]:
    """Return a function that reads an answer of a shape. It raises TypeError, ValueError for another answer."""

    def read(reply: Reply) -> dict[str, Any]:
        found = protocol.json_object(reply)
        if not fits(found, shape):
            raise TypeError("a JSON object of another shape")
        return found

    return read
