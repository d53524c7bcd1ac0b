"""Make letters of records that can't be decoded, that make a function raise, or that are late.

Without a topic for **dead letters** a job stops at the first record that fails. With such a topic it sends each of
them there. A late record goes to a topic for late records; without such a topic the job only counts it. The payload
of a letter is the message of the record if it is known, else the record's value. The headers give the reason::

    reason    decode, error or late       job, operator    where
    error     the error's type and text   stack            where in the program
    id        the message's id, hex       time, key, start, end      of a late record, JSON or text

The result of a closed window or of a processor's timer is from no single message. Its letter has the key and the time.
A record fails whatever its function raises (``broker.user_code``); only SystemExit and KeyboardInterrupt end the job.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

import orjson

from broker import user_code
from broker.model import MESSAGE_ID_BYTES
from broker.streams.stream_records import Letter, StreamRecord

STACK_BYTES_MAX: Final = 8_192
TEXT_BYTES_MAX: Final = 2_048
"""How much of a header is kept: the headers of a message have room for 16 KiB. Of a stack the end is kept."""


class Failed(Exception):
    """A record failed, and the job shall stop because of it."""


class Failures:
    """Decides between a letter and a stop for records that fail. The job sends it to Spark's workers.

    ``topic`` None: the job stops.
    """

    def __init__(self, job: str, topic: str | None) -> None:
        """Keep the job's id, and the topic for dead letters."""
        self.job = job
        self.topic = topic

    def letter(
        self, reason: str, operator: str, record: StreamRecord, error: BaseException
    ) -> Letter:
        """Return the letter of a record that failed.

        Raises:
            Failed: the job shall stop.
            SystemExit, KeyboardInterrupt: this is the error.
        """
        if user_code.ends_program(error):
            raise error
        told = user_code.text_of(error, TEXT_BYTES_MAX)
        message_id = record.at[:MESSAGE_ID_BYTES].hex()
        if self.topic is None:
            where = f"the message {message_id}" if message_id else f"the key {_repr(record.key)}"
            raise Failed(
                f"{operator} failed at {where} ({reason}): {told}. "
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
                "error": told.encode(),
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
    """Return the message of a record, or its value as JSON. Values that JSON can't hold appear as their repr."""
    return _shown(record.value) if record.payload is None else record.payload


def _shown(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # A value that JSON can't hold, such as a very large integer.
        return _encoded(_repr(value))


def _repr(value: Any) -> str:
    shown = user_code.call(repr, value).value
    return f"a {type(value).__name__}, whose repr fails" if shown is None else shown


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
