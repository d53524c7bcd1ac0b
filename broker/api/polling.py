"""Polls: read as a consumer.

A reply is a stream of whole Avro blocks with a zero at the end. A consumer that finds the zero missing
knows that the answer was cut; that is how a failure after the status line is told.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator

from broker.api.bodies import BodyType, body_type
from broker.api.replies import AVRO, JSON, Answer, Headers, Reply, Stream
from broker.api.request import Request
from broker.api.waiting import unless_abandoned
from broker.errors import BadRequest
from broker.topics.reading import PollStream
from broker.topics.service import Topics
from broker.wire import avro, avrojson
from broker.wire.blocks import END

BLOCKED_BY = "Broker-Blocked-By"


class Polling:
    """The handler of polls."""

    def __init__(self, topics: Topics, *, wait_max_s: float) -> None:
        """Keep the service; ``wait_max_s`` bounds how long a poll may wait."""
        self._topics = topics
        self._wait_max_s = wait_max_s

    async def poll(self, request: Request) -> Answer:
        """Answer messages, at once or as soon as there are some that this consumer may see."""
        kind = body_type(request.headers)
        decode = avrojson.decode_poll if kind is BodyType.JSON else avro.decode_poll
        poll = decode(request.body)
        wait_s = self._wait_s(request)
        stream: PollStream | None
        if wait_s > 0:
            waiting = self._topics.poll(request.topic, poll, wait_s=wait_s)
            stream = await unless_abandoned(waiting, request.abandoned())
        else:
            stream = await self._topics.poll(request.topic, poll)
        headers = _blocked_by(stream)
        if kind is BodyType.JSON:
            return Stream(_json_chunks(stream), JSON, headers)
        if stream is None or stream.ended:
            # Nothing is left to read: one chunk, without the cost of a stream.
            first = b"" if stream is None else stream.first
            return Reply(200, first + END, AVRO, headers, chunked=True)
        return Stream(_avro_chunks(stream), AVRO, headers)

    def _wait_s(self, request: Request) -> float:
        if not request.query_string or (text := request.query.get("wait")) is None:
            return 0.0
        try:
            wait_s = float(text)
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= self._wait_max_s:
            raise BadRequest(f"wait must be 0 to {self._wait_max_s:g} seconds, not {text!r:.80}.")
        return wait_s


def _blocked_by(stream: PollStream | None) -> Headers:
    if stream is None or not stream.empty or stream.blocked_by is None:
        return ()
    return ((BLOCKED_BY, str(stream.blocked_by)),)


async def _avro_chunks(stream: PollStream) -> AsyncGenerator[bytes, None]:
    async for block in stream.blocks():
        yield block
    yield END


async def _json_chunks(stream: PollStream | None) -> AsyncGenerator[bytes, None]:
    opening = b"["
    if stream is not None:
        async for messages in stream.messages():
            if messages:
                ids, payloads = zip(*messages, strict=True)
                yield opening + avrojson.encode_items(ids, payloads)
                opening = b","
    yield b"[]" if opening == b"[" else b"]"
