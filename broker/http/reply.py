"""Replies as values, and the one place that makes a reply from an error. ``delivery`` makes aiohttp's responses of them."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping

import orjson

from broker.errors import BrokerError, CursorMoved, UnavailableError
from broker.operations.media_types import AVRO_JSON, JSON, PLAIN

_OF_JSON = (JSON, AVRO_JSON)

RETRY_AFTER_S = 1.0
TEXT_CHARACTERS_MAX = 2000

Piece = bytes | memoryview
"""A piece of a streamed body: bytes, or a view of memory that is sent without a copy."""

Headers = tuple[tuple[str, str], ...]


class Reply:
    """A whole answer. An empty ``content_type`` means that the header is absent."""

    __slots__ = ("body", "chunked", "close", "content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = "",
        headers: Headers = (),
        *,
        close: bool = False,
        chunked: bool = False,
    ) -> None:
        """Keep the parts.

        ``close`` ends the connection after the answer. ``chunked`` sends the body in HTTP chunks, for consumers that
        expect them; the body must not be empty then.
        """
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.close = close
        self.chunked = chunked

    def with_headers(self, *headers: tuple[str, str]) -> Reply:
        """Return this reply with more headers."""
        return Reply(
            self.status,
            self.body,
            self.content_type,
            (*self.headers, *headers),
            close=self.close,
            chunked=self.chunked,
        )


class ChunkedReply:
    """An answer whose body is made while it is sent. Each item becomes one or more HTTP chunks, so no item may be empty.

    ``compressible`` bodies are gzipped if the client accepts that. If the client has gone, the sender closes the
    generator of the chunks with ``aclose``.
    """

    __slots__ = ("chunks", "compressible", "content_type", "headers", "status")

    def __init__(
        self,
        chunks: AsyncGenerator[Piece, None],
        content_type: str,
        headers: Headers = (),
        *,
        compressible: bool = True,
    ) -> None:
        """Keep the parts. The status is always 200: an error before the stream begins makes a Reply instead."""
        self.status = 200
        self.chunks = chunks
        self.content_type = content_type
        self.headers = headers
        self.compressible = compressible


Answer = Reply | ChunkedReply

EMPTY = Reply()
EMPTY_REPLAYED = Reply(headers=(("Idempotency-Replayed", "true"),))


def json_reply(value: object, status: int = 200, headers: Headers = ()) -> Reply:
    """Answer with a value as JSON."""
    return Reply(status, orjson.dumps(value), JSON, headers)


def media_type(headers: Mapping[str, str]) -> str:
    """Return the type of a request's body, without parameters, in lower case. Empty if the header is missing."""
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def names_json(headers: Mapping[str, str]) -> bool:
    """Return whether an error should be JSON: the client names JSON in Accept, or sent JSON."""
    accepted = headers.get("Accept", "").lower()
    return media_type(headers) in _OF_JSON or any(kind in accepted for kind in _OF_JSON)


def retry_after_s(error: BrokerError) -> int:
    """Return the whole seconds for Retry-After, at least one."""
    return max(1, math.ceil(error.retry_after_s or RETRY_AFTER_S))


def error_reply(
    error: BrokerError, headers: Mapping[str, str], more: Headers = (), *, close: bool = False
) -> Reply:
    """Return the reply for an error. ``headers`` are the request's; ``more`` are added to the reply."""
    reply_headers: list[tuple[str, str]] = [
        *more,
        ("Broker-Error", error.code),
        ("Broker-Outcome", error.outcome),
    ]
    if error.http_status == 503 or (isinstance(error, UnavailableError) and error.retriable):
        reply_headers.append(("Retry-After", str(retry_after_s(error))))
    message = error.message[:TEXT_CHARACTERS_MAX]
    if names_json(headers):
        told = {
            "code": error.code,
            "message": message.encode("utf-8", "replace").decode(),
            "retriable": error.retriable,
            "outcome": error.outcome,
        }
        if isinstance(error, CursorMoved):
            told["cursor"] = error.cursor
        body = orjson.dumps(told)
        content_type = JSON
    else:
        body, content_type = message.encode("utf-8", "replace"), PLAIN
    return Reply(error.http_status, body, content_type, tuple(reply_headers), close=close)


def unexpected_reply(headers: Mapping[str, str], request_id: str) -> Reply:
    """Return the reply for an unexpected exception: the outcome is unknown."""
    error = BrokerError(f"Internal error; the log has the cause under request {request_id}.")
    return error_reply(error, headers)
