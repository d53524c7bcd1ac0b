"""Dead letters: what becomes of a message that its handler can't handle.

A letter has the message's payload, its key and its headers, and headers that say why it is there::

    dead-letter-reason      the error's type and text     dead-letter-topic        where the message was published
    dead-letter-id          the message's id, hex         dead-letter-subscriber   whose handler failed
    dead-letter-tries       how often it was tried        dead-letter-time         when it was given up, RFC 3339

A message's key and headers may take 16 KiB together. Of a message that has no room left for these headers, its own
headers, and if need be its key, are left out, and ``dead-letter-left-out`` says so.

A letter is published under an idempotency key that is made of the topic, the subscriber and the message. So a
subscriber that dies between the letter and its place publishes no second one, as long as it is back within the
broker's window.
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
    """Return where the letters of a topic go if no topic is named for them."""
    return TopicId(topic.namespace, topic.topic + SUFFIX)


def key_of(topic: TopicId, subscriber: str, message: Message) -> str:
    """Return the idempotency key of a letter: another one for each topic, subscriber and message."""
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
    """Return the letter of a message that its handler failed at."""
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
