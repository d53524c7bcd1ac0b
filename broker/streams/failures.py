"""What becomes of a record that can't be decoded, that a function raises at, or that comes too late.

A job stops at the first record that fails, or it sends each to a topic of **dead letters**, as it was told. A late
record goes to a topic for late records, or is counted alone. Each letter has the message that the record came
from, where that is known, or else its value; its headers say why::

    reason    decode, error or late       job, operator    where
    error     the error's type and text   stack            where in the program
    id        the message's id, hex       time, key, start, end      of a late record, JSON or text

What a closed window or a processor's timer gives is of no one message: its letter has the key and the time.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

import orjson

from broker.model import MESSAGE_ID_BYTES
from broker.streams.stream_records import Letter, StreamRecord

STACK_BYTES_MAX: Final = 8_192
TEXT_BYTES_MAX: Final = 2_048
"""What is kept of a header: a message's have room for 16 KiB together. Of a stack it is the end."""


class Failed(Exception):
    """A record failed, and its job shall stop then."""


class Failures:
    """What a job does with records that fail. It travels to Spark's workers.

    ``topic`` None: the job stops.
    """

    def __init__(self, job: str, topic: str | None) -> None:
        """Keep both."""
        self.job = job
        self.topic = topic

    def letter(self, reason: str, operator: str, record: StreamRecord, error: Exception) -> Letter:
        """Return the letter of a record that failed.

        Raises:
            Failed: the job shall stop.
        """
        message_id = record.at[:MESSAGE_ID_BYTES].hex()
        if self.topic is None:
            where = f"the message {message_id}" if message_id else f"the key {record.key!r}"
            raise Failed(
                f"{operator} failed at {where} ({reason}): {type(error).__name__}: {error}. "
                "Give the builder dead_letters=TOPIC to go on without such records."
            ) from error
        stack = "".join(traceback.format_exception(error))
        of = (
            {}
            if message_id
            else {"key": _shown(record.key)[:TEXT_BYTES_MAX], "time": b"%d" % record.time_ms}
        )
        return Letter(
            self.topic,
            payload_of(record),
            {
                "reason": reason.encode(),
                "job": self.job.encode(),
                "operator": operator.encode(),
                "id": message_id.encode(),
                "error": _text(f"{type(error).__name__}: {error}"),
                "stack": _encoded(stack)[-STACK_BYTES_MAX:],
                **of,
            },
        )


def late_letter(job: str, operator: str, topic: str | None, record: StreamRecord) -> Letter:
    """Return the letter of a record whose window ``record.window`` is closed."""
    start, end = record.window or (0, 0)
    return Letter(
        topic,
        payload_of(record),
        {
            "reason": b"late",
            "job": job.encode(),
            "operator": operator.encode(),
            "id": record.at[:MESSAGE_ID_BYTES].hex().encode(),
            "time": b"%d" % record.time_ms,
            "key": _shown(record.key)[:TEXT_BYTES_MAX],
            "start": b"%d" % start,
            "end": b"%d" % end,
        },
    )


def payload_of(record: StreamRecord) -> bytes:
    """Return the message of a record, or its value as JSON; what JSON does not have, as Python shows it."""
    return _shown(record.value) if record.payload is None else record.payload


def _shown(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # Numbers that JSON has not, and the like.
        return _encoded(repr(value))


def _text(text: str) -> bytes:
    return _encoded(text)[:TEXT_BYTES_MAX]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
