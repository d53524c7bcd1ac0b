"""Dead letters: copies, in another topic, of messages that their handler can't handle.

A letter has the message's payload, key and headers. Further headers say why it exists::

    dead-letter-reason      the error's type and text     dead-letter-topic        where the message was published
    dead-letter-id          the message's id, hex         dead-letter-subscriber   whose handler failed
    dead-letter-tries       how often it was tried        dead-letter-time         when it was given up, RFC 3339

The key and headers of a message may take 16 KiB together. If the further headers do not fit, the letter leaves out
the message's own headers, and if need be its key. ``dead-letter-left-out`` names the missing parts.

A letter is published under an idempotency key made of the topic, the subscriber and the message. A subscriber may
stop after it published the letter and before it wrote its place. If it restarts within the broker's window, it
publishes no second letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from broker.client.values import NewMessage
from broker.errors import BadRequest
from broker.model import Message, TopicId
from broker.wire import attributes

PREFIX: Final = "dead-letter-"
REASON_BYTES_MAX: Final = 1024
SUFFIX: Final = "-dead-letters"


def default_topic(topic: TopicId) -> TopicId:
    """Return the default topic for the dead letters of a topic."""
    return TopicId(topic.namespace, topic.topic + SUFFIX)


def key_of(topic: TopicId, subscriber: str, message: Message) -> str:
    """Return the idempotency key of a letter; each topic, subscriber and message has another one."""
    about = f"{topic.namespace}/{topic.topic}/{subscriber}/{message.id.hex()}"
    return "dead-letter." + hashlib.sha256(about.encode()).hexdigest()


def letter_of(
    topic: TopicId,
    subscriber: str,
    message: Message,
    error: BaseException,
    *,
    tries: int,
    now_ms: int,
) -> NewMessage:
    """Return the dead letter of a message whose handler failed."""
    about = {
        "reason": f"{type(error).__name__}: {error}",
        "id": message.id.hex(),
        "topic": f"{topic.namespace}/{topic.topic}",
        "subscriber": subscriber,
        "tries": str(tries),
        "time": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
    }
    ours = {
        PREFIX + name: value.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX]
        for name, value in about.items()
    }
    left_out = f"{PREFIX}left-out"
    choices: tuple[tuple[bytes | None, Mapping[str, bytes]], ...] = (
        (message.key, {**message.headers, **ours}),
        (message.key, {**ours, left_out: b"headers"}),
        (None, {**ours, left_out: b"key, headers"}),
    )
    for key, headers in choices[:-1]:
        if _fits(key, headers):
            return NewMessage(message.payload, key, headers)
    return NewMessage(message.payload, *choices[-1])


def _fits(key: bytes | None, headers: Mapping[str, bytes]) -> bool:
    try:
        attributes.encode(key, headers)
    except BadRequest:
        return False
    return True
