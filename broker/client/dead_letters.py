"""Dead letters: copies, in another topic, of messages that their handler can't handle.

A letter has the message's payload, key and headers. Further headers say why it exists::

    dead-letter-reason      the error's type and text     dead-letter-topic        where the message was published
    dead-letter-id          the message's id, hex         dead-letter-subscriber   whose handler failed
    dead-letter-tries       how often it was tried        dead-letter-time         when it was given up, RFC 3339
    dead-letter-generation  that of the message's topic

The key and headers of a message may take 16 KiB together. If the further headers do not fit, the letter leaves out
the message's own headers, and if need be its key. If the letter is too large for the broker, which bounds a message with
its headers, it leaves out the payload. ``dead-letter-left-out`` names the missing parts; the message itself has them.

A letter is published under an idempotency key made of the topic, the subscriber and the message. A subscriber may
stop after it published the letter and before it wrote its place. If it restarts within the broker's window, it
publishes no second letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from broker.client.values import NewMessage
from broker.errors import BadRequest
from broker.model import Message, TopicId
from broker.moments import rfc3339
from broker.user_code import text_of
from broker.wire import attributes

PREFIX: Final = "dead-letter-"
REASON_BYTES_MAX: Final = 1024
SUFFIX: Final = "-dead-letters"
LEFT_OUT: Final = f"{PREFIX}left-out"
RETRY_FOR: Final = f"{PREFIX}retry-for"
"""The header of a message that was published again for one subscriber: its topic and its name. The other subscribers of
that topic pass the message by. A copy of it in another topic, with its headers, is a message for all of them."""


def default_topic(topic: TopicId) -> TopicId:
    """Return the default topic for the dead letters of a topic."""
    return TopicId(topic.namespace, topic.topic + SUFFIX)


def key_of(about: Mapping[str, str], message: Message) -> str:
    """Return the idempotency key of a letter; each topic, subscriber and message has another one."""
    told = f"{about['topic']}/{about['subscriber']}/{message.id.hex()}"
    return "dead-letter." + hashlib.sha256(told.encode()).hexdigest()


def letter_of(
    about: Mapping[str, str], message: Message, *, with_payload: bool = True
) -> NewMessage:
    """Return the dead letter of a message. ``about`` says why (``about``), by the names of headers without prefix."""
    ours = {
        PREFIX + name: value.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX]
        for name, value in about.items()
    }
    own = {name: value for name, value in message.headers.items() if not name.startswith(PREFIX)}
    parts: tuple[tuple[bytes | None, Mapping[str, bytes], tuple[str, ...]], ...] = (
        (message.key, own, ()),
        (message.key, {}, ("headers",)),
        (None, {}, ("key", "headers")),
    )
    payload = message.payload if with_payload else b""
    for key, headers, left_out in parts:
        missing = left_out if with_payload else (*left_out, "payload")
        told = {LEFT_OUT: ", ".join(missing).encode()} if missing else {}
        every = {**headers, **ours, **told}
        if fits(key, every):
            return NewMessage(payload, key, every)
    raise AssertionError("the headers of a letter itself always fit")


def about(  # noqa: PLR0913 - One for each header.
    topic: TopicId,
    subscriber: str,
    message: Message,
    error: BaseException,
    tries: int,
    now_ms: int,
    *,
    generation: int,
) -> dict[str, str]:
    """Return why a message is a dead letter."""
    return {
        "reason": text_of(error, REASON_BYTES_MAX),
        "id": message.id.hex(),
        "topic": f"{topic.namespace}/{topic.topic}",
        "generation": str(generation),
        "subscriber": subscriber,
        "tries": str(tries),
        "time": rfc3339(now_ms),
    }


def retry_for(topic: str, subscriber: str) -> bytes:
    """Return the value of the header ``RETRY_FOR``."""
    return f"{topic} {subscriber}".encode()


def is_for_another(message: Message, topic: TopicId, subscriber: str) -> bool:
    """Return whether a message of a topic is the retry of a dead letter of another subscriber of that topic."""
    told = message.headers.get(RETRY_FOR, b"").rpartition(b" ")
    of = f"{topic.namespace}/{topic.topic}".encode()
    return told[0] == of and told[2] != subscriber.encode()


def fits(key: bytes | None, headers: Mapping[str, bytes]) -> bool:
    """Return whether a message may have this key and these headers."""
    try:
        attributes.encode(key, headers)
    except BadRequest:
        return False
    return True
