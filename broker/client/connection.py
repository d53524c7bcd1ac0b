"""A connection to a node: for writes, several at a time if the server is ours, or for one read at a time.

What HTTP needs is in ``broker.http.outbound``; here is what it means to a client: an outcome by its name
(``outcomes``), what an answer tells of the cluster (``leaders``), and whether the server may be sent the
next request before the last is answered. Pipelining starts with the second request, after an answer
showed that the server is this project's: of the original nobody knows whether it answers in order.

A server may close an idle connection at the moment at which a request is sent on it. Nobody could say
then whether the request was read, so the client sees to it that this does not happen by plan:

* a reply with ``Connection: close`` is the last of its connection; what was sent behind it was not
  looked at (RFC 9112, 9.6), and the next request goes to another node;
* a connection on which nothing is under way is looked at before it is used: the end that the server has
  sent, or its last words, may lie in the socket already;
* a node that stops ends idle connections of this client with last words: an answer 408 with
  ``Connection: close``, which says that it has read nothing since its last reply and will read nothing
  more (RFC 9110, 15.5.9: the request may be repeated). A request that crosses them on the way takes
  them as its answer, and is sent to another node.

What remains unknown is what a crash leaves unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from broker.client import outcomes
from broker.client.node_directory import HEADER, NodeDirectory
from broker.client.protocol import ClientRequest, Reply
from broker.http import outbound
from broker.http.answer import NoAnswer, NotSent, Streamed
from broker.model import TopicId

OURS: Final = "x-request-id"
"""The header by which an answer shows that the server is this project's."""

HEADS_KEPT_MAX: Final = 256


class ClientConnection(outbound.OutboundConnection):
    """A connection whose ends are told as a client understands them.

    Args:
        url: the node at its other end.
        headers: sent with every request.
        nodes: where what answers tell of the cluster is noted.
        idle_s_max: when it was idle for longer, it is not used again.

    Attributes:
        ours: whether an answer showed that the server is this project's.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], nodes: NodeDirectory, idle_s_max: float
    ) -> None:
        super().__init__(url, headers)
        self.ours = False
        self._nodes = nodes
        self._idle_s_max = idle_s_max
        self._left = False
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    def good_for(self, topic: TopicId | None) -> bool:
        """Whether a request about a topic may go out on it, and belongs to its node."""
        if not self.usable:
            return False
        now = self._loop.time()
        if not self.requests_in_flight and not self.is_fresh(self._idle_s_max):
            return False
        return self._nodes.place(topic, now) == self.url

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        """Send one request and return its answer, whatever its status.

        Raises:
            Unavailable: nothing of the request was sent, or the server has not looked at it.
            OutcomeUnknown: no answer came, and the request was not repeatable.
        """
        try:
            reply = await self.exchange(request, timeout_s)
        except asyncio.CancelledError:
            self._left = True  # Others that waited behind it lost nothing by the node's fault.
            raise
        except NotSent as error:
            self._lost()
            raise outcomes.never_sent(error) from error
        except NoAnswer as error:
            self._lost()
            raise outcomes.no_answer(request, error) from error
        self._note(request, reply.status, reply.headers)
        return reply

    async def read(self, request: ClientRequest, timeout_s: float) -> Streamed:
        """Send one read and return its answer once it has begun, whatever its status. Raises Unavailable."""
        try:
            streamed = await self.stream(request, timeout_s)
        except NotSent as error:
            self._lost()
            raise outcomes.never_sent(error) from error
        except NoAnswer as error:
            self._lost()
            raise outcomes.no_answer(request, error) from error
        if streamed.headers.get("content-encoding", "identity") != "identity":
            self.close()
            raise outcomes.no_answer(request, "it is compressed, which was not asked for")
        self._note(request, streamed.status, streamed.headers)
        return streamed

    async def chunk(self, streamed: Streamed, request: ClientRequest, silence_s: float) -> bytes:
        """Return what has arrived of the answer to a read; no bytes are its end.

        Raises:
            Unavailable: it was cut off, or nothing came for ``silence_s``.
        """
        try:
            return await streamed.chunk(silence_s)
        except NoAnswer as error:
            self._lost()
            raise outcomes.no_answer(request, error) from error

    def _lost(self) -> None:
        if not self._left:
            self._nodes.lost(self.url, self._loop.time())

    def _note(self, request: ClientRequest, status: int, headers: Mapping[str, str]) -> None:
        """Note what an answer tells of the cluster."""
        now = self._loop.time()
        self._nodes.heard(request.topic, self.url, headers.get(HEADER), now)
        closes = headers.get("connection", "").lower() == "close"
        if closes and (status < 400 or status in {408, 503}):
            self._nodes.leaving(self.url, now)  # With other errors only a body was not read.
        else:
            self._nodes.answered(self.url)

    @override
    def close(self, reason: str = "the connection was closed on this side") -> None:
        self._left = True
        super().close(reason)

    @override
    def got(self, reply: Reply) -> None:
        super().got(reply)
        self.ours = self.ours or OURS in reply.headers

    @override
    def head(self, request: outbound.Ask) -> bytes:
        key = (request.method, request.path, tuple(request.headers.items()))
        head = self._heads.get(key)
        if head is None:
            head = super().head(request)
            if len(self._heads) < HEADS_KEPT_MAX and not _comes_once(request):
                self._heads[key] = head
        return head


def _comes_once(request: outbound.Ask) -> bool:
    """Whether a request has a head that does not come again, but for a retry."""
    headers = request.headers
    is_counted = "Idempotency-Key" in headers or "Producer-Number" in headers
    return is_counted or "/stages/" in request.path
