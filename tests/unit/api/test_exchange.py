"""What aiohttp's protocol is given for a request, and for its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import HttpVersion10, HttpVersion11

from broker.api.exchange import SENT, SENT_LAST, Exchange


class Content:
    """A body that keeps what went wrong with it."""

    error: BaseException | None = None

    def set_exception(self, error: BaseException) -> None:
        """Keep it."""
        self.error = error


def exchange(**differing: Any) -> Exchange:
    """Return a request as the parser would give it."""
    told = {"method": "GET", "path": "/x?y=z", "headers": {"a": "b"}, "should_close": False}
    message = SimpleNamespace(**{**told, "version": HttpVersion11, **differing})
    parts: list[Any] = [message, Content(), SimpleNamespace(begun=False), None, None]
    return Exchange(*parts)


def test_a_request_is_as_it_was_read() -> None:
    made = exchange()
    assert (made.method, made.path, made.headers) == ("GET", "/x?y=z", {"a": "b"})
    assert made.connection.begun
    assert made.connection.headers == {"a": "b"}


@pytest.mark.parametrize(
    ("version", "should_close", "expected"),
    [
        (HttpVersion11, False, (True, True)),
        (HttpVersion11, True, (False, True)),
        (HttpVersion10, True, (False, False)),
        (HttpVersion10, False, (True, False)),
    ],
)
def test_what_the_client_can_take(
    version: object, should_close: bool, expected: tuple[bool, bool]
) -> None:
    made = exchange(version=version, should_close=should_close)
    assert (made.keep_alive, made.takes_chunks) == expected


def test_who_reads_the_body_hears_that_the_client_is_gone() -> None:
    made, gone = exchange(), ConnectionResetError()
    made._cancel(gone)
    assert cast("Any", made.content).error is gone


async def test_the_answer_says_only_whether_the_connection_stays_open() -> None:
    assert (SENT.keep_alive, SENT_LAST.keep_alive) == (True, False)
    request: Any = None
    assert await SENT.prepare(request) is None
    await SENT.write_eof(b"nothing is written")
