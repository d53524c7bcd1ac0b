"""Make requests before a timed run: payloads are 256 random bytes, which do not compress."""

from __future__ import annotations

import random

from benchmarks.load import ask, http_request
from broker.model import MessageId, Poll, PublishRequest
from broker.wire import avro

PAYLOAD_BYTES = 256
NAMESPACE = "default"
_SEED = 20_240_501


def payloads(count: int) -> list[bytes]:
    """Return different payloads, the same ones in every run."""
    rng = random.Random(_SEED)
    return [rng.randbytes(PAYLOAD_BYTES) for _ in range(count)]


def _path(topic: str, operation: str = "") -> str:
    return f"/v1/namespaces/{NAMESPACE}/topics/{topic}{operation}"


async def create_topic(port: int, topic: str) -> None:
    """Create a topic with the server's defaults."""
    await ask(port, http_request("PUT", _path(topic)))


def publishes(topic: str, *, messages: int, requests: int) -> list[bytes]:
    """Return publish requests of ``messages`` messages each, all different."""
    pool = payloads(max(512, min(messages * requests, 4096)))
    made = []
    for number in range(requests):
        start = number * messages
        chosen = [pool[(start + index) % len(pool)] for index in range(messages)]
        body = avro.encode_publish_request(PublishRequest(None, chosen))
        made.append(http_request("POST", _path(topic, "/publish"), body))
    return made


def poll(
    topic: str,
    *,
    start: MessageId | int | None = None,
    limit: int | None = None,
    wait_s: int = 0,
) -> bytes:
    """Return a poll request; it begins behind ``start`` if that is a message id."""
    body = avro.encode_poll(Poll(start, limit=limit, inclusive=False))
    query = f"?wait={wait_s}" if wait_s else ""
    return http_request("POST", _path(topic, "/poll") + query, body)
