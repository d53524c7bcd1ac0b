"""A connection to a node: for several writes at a time if the server is ours, or for one read at a time.

``broker.http.outbound`` does the HTTP. This module adds the client's view. It names the outcome of a request
(``outcomes``). It passes an answer's news of the cluster to the ``node_directory``. And it decides whether the
client may send the next request before the last one is answered. Pipelining starts with the second request,
after an answer showed that the server is this project's: it is not known whether the original answers
requests in order.

A server may close an idle connection at the moment when the client sends a request on it. Then it is unknown
whether the server read the request. The client and the broker avoid this in planned cases:

* A reply with ``Connection: close`` is the last one of its connection. The server did not process any later
  request on it (RFC 9112, 9.6). The next request goes to another node.
* Before the client uses an idle connection, it looks into the socket: the server's end of the connection, or
  its unsolicited 408, may have arrived already.
* A node that stops sends an unsolicited answer 408 with ``Connection: close`` on the idle connections of this
  client, and ends them. It means that the node has read nothing since its last reply and will read nothing
  more (RFC 9110, 15.5.9: the request may be repeated). A request that is in flight at that moment receives
  the 408 as its answer, and the client sends it to another node.

A proxy may answer 503 after it has passed a request on and lost the node's answer. All errors of this broker name the
outcome, those of the original never do. So once an answer from an address showed that the server is this project's, an
error from there that does not name the outcome is a proxy's, and the outcome of a write is unknown.

A crash, a cut network, a time-out or a cancelled call leaves an outcome unknown.

A frozen process, or a failed machine, does not close its connections. So while a request that may be repeated has no
answer, the client asks other nodes which node should lead the topic. If they name another one, it gives up the
connection. The storage decides whether the silent leader can still write, so an early guess only costs a repetition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final

from typing_extensions import override

from broker.client import outcomes
from broker.client.client_request import ClientRequest, Reply
from broker.client.credentials import Credentials
from broker.client.node_directory import HEADER, NodeDirectory
from broker.errors import BrokerError, OutcomeUnknown, Unauthenticated, Unavailable
from broker.http import outbound
from broker.http.answer import NoAnswer, NotSent
from broker.http.outbound import Streamed
from broker.model import TopicId
from broker.operations.parameters import KEY, PRODUCER_NUMBER, REQUEST_TIMEOUT_S_MAX
from broker.secret import Secret

OURS: Final = "x-request-id"
"""An answer with this header shows that the server is this project's."""

UNAUTHENTICATED: Final = Unauthenticated.http_status

CUT_OFF: Final = frozenset({Unavailable.code, OutcomeUnknown.code})
"""After such an answer the client asks another node: this one may have lost its storage, or the other nodes."""

HEADS_KEPT_MAX: Final = 256

WRITE_LOOK_S: Final = 0.3
"""How long a write may have no answer before the client asks other nodes for the leader, and how often it asks."""
READ_LOOK_S: Final = 5.0
"""The same for a read, which may wait for messages."""

Moved = Callable[[TopicId, str], Awaitable[bool]]

NO_CREDENTIALS: Final = Credentials(Secret())
RENEWED: Final = "the server refused the token, and the file of the token has a new one"
REFUSAL_BYTES_MAX: Final = 64 * 1024
"""How much of the answer to a refused token is read, so that its connection can be used again."""

LIMIT_SHARE: Final = 0.9
"""A node may take this share of the time for which the client waits."""


class ClientConnection(outbound.OutboundConnection):
    """A connection that turns the errors of HTTP into the errors of the client.

    Args:
        url: the address of the node.
        headers: sent with every request.
        nodes: records what the answers say about the cluster.
        idle_s_max: a connection that was idle for longer is not used again.
        credentials: the caller's token; the node is one that may get it.
        moved: returns whether another node than the one at this address should lead a topic by now, as far as others
            know; None: there is no other node to ask.
        with_limit: whether to tell the node how long a request may take. A node then refuses a request that waits
            too long for a leader; otherwise this client would give it up as unknown.

    Attributes:
        ours: whether an answer showed that the server is this project's.
    """

    def __init__(  # noqa: PLR0913 - The parts of a connection, each by its name.
        self,
        url: str,
        headers: Mapping[str, str],
        nodes: NodeDirectory,
        idle_s_max: float,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        moved: Moved | None = None,
        with_limit: bool = False,
    ) -> None:
        super().__init__(url, headers)
        self._credentials = credentials
        self._moved = moved
        self._with_limit = with_limit
        self._limit = b""
        self.ours = False
        self._nodes = nodes
        self._idle_s_max = idle_s_max
        self._closed_here = False
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    def good_for(self, topic: TopicId | None) -> bool:
        """Return whether a request about a topic may be sent on this connection, and belongs to its node."""
        if not self.usable:
            return False
        now = self._loop.time()
        if not self.requests_in_flight and not self.is_fresh(self._idle_s_max):
            return False
        return self._nodes.place(topic, now) == self.url

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        """Send one request and return its answer, with any status.

        If a server refuses the token, and its file has a new one, the request is sent again with it.

        Raises:
            Unavailable: the request was not sent, or the server has not processed it.
            OutcomeUnknown: no answer of the broker came to a write.
        """
        ends, line = self._loop.time() + timeout_s, self._credentials.line
        reply = await self._send_once(request, timeout_s)
        if reply.status == UNAUTHENTICATED and self._credentials.renewed(line):
            self._check_after_renewal()
            reply = await self._send_once(request, max(0.0, ends - self._loop.time()))
        return reply

    def _check_after_renewal(self) -> None:
        """Raise Unavailable if the request must go to another connection: servers close one for an unread body."""
        if not self.usable:
            raise outcomes.never_sent(RENEWED)

    async def _send_once(self, request: ClientRequest, timeout_s: float) -> Reply:
        if self._with_limit:
            limit_s = min(REQUEST_TIMEOUT_S_MAX, max(0.001, LIMIT_SHARE * timeout_s))
            self._limit = b"Request-Timeout: %.3g\r\n" % limit_s
        try:
            with self._watched(request, WRITE_LOOK_S):
                reply = await self.exchange(request, timeout_s)
        except asyncio.CancelledError:
            self._closed_here = True  # The later requests on it did not fail by the node's fault.
            raise
        except NotSent as error:
            self._lost()
            raise outcomes.never_sent(error) from error
        except NoAnswer as error:
            self._lost()
            raise outcomes.no_answer(request, error) from error
        self._note(request, reply.status, reply.headers)
        self._check_source(request, reply)
        return reply

    async def read(self, request: ClientRequest, timeout_s: float) -> Streamed:
        """Send one read and return its answer, with any status, as soon as it begins. Raises Unavailable."""
        ends, line = self._loop.time() + timeout_s, self._credentials.line
        streamed = await self._read_once(request, timeout_s)
        if streamed.status == UNAUTHENTICATED and self._credentials.renewed(line):
            rest = REFUSAL_BYTES_MAX
            while rest > 0 and (
                chunk := await self.chunk(streamed, request, max(0.0, ends - self._loop.time()))
            ):
                rest -= len(chunk)
            streamed.close()
            self._check_after_renewal()
            streamed = await self._read_once(request, max(0.0, ends - self._loop.time()))
        return streamed

    async def _read_once(self, request: ClientRequest, timeout_s: float) -> Streamed:
        try:
            with self._watched(request, READ_LOOK_S):
                streamed = await self.stream(request, timeout_s)
        except NotSent as error:
            self._lost()
            raise outcomes.never_sent(error) from error
        except NoAnswer as error:
            self._lost()
            raise outcomes.no_answer(request, error) from error
        if streamed.headers.get("content-encoding", "identity") != "identity":
            self.close()
            raise outcomes.no_answer(
                request, "it is compressed, although the client did not ask for that"
            )
        self._note(request, streamed.status, streamed.headers)
        try:
            self._check_source(request, Reply(streamed.status, streamed.headers, b"", self.url))
        except BrokerError:
            streamed.close()
            raise
        return streamed

    def _check_source(self, request: ClientRequest, reply: Reply) -> None:
        """Raise Unavailable or OutcomeUnknown if a proxy answered in the place of this project's broker."""
        if self._nodes.is_ours(self.url) and outcomes.is_by_a_proxy(reply):
            raise outcomes.foreign(request, reply)

    @contextmanager
    def _watched(self, request: ClientRequest, look_s: float) -> Generator[None]:
        """Give up the connection while the block waits, if another node should lead the topic by now."""
        moved, topic = self._moved, request.topic
        if moved is None or topic is None or not request.repeatable:
            yield
            return
        looking: list[asyncio.Task[None]] = []

        async def look() -> None:
            while not await moved(topic, self.url):  # noqa: ASYNC110 - It is asked for, not told.
                await asyncio.sleep(look_s)
            self.give_up("another node should lead the topic by now")

        timer = self._loop.call_later(
            look_s, lambda: looking.append(self._loop.create_task(look()))
        )
        try:
            yield
        finally:
            timer.cancel()
            for task in looking:
                task.cancel()

    async def chunk(self, streamed: Streamed, request: ClientRequest, silence_s: float) -> bytes:
        """Return the next bytes of the answer to a read; empty at the end.

        Raises:
            Unavailable: the answer was cut off, or nothing arrived for ``silence_s``.
        """
        try:
            return await streamed.chunk(silence_s)
        except NoAnswer as error:
            self._lost()
            raise outcomes.no_answer(request, error) from error

    def _lost(self) -> None:
        if not self._closed_here:
            self._nodes.lost(self.url, self._loop.time())

    def _note(self, request: ClientRequest, status: int, headers: Mapping[str, str]) -> None:
        """Record what an answer says about the cluster."""
        now = self._loop.time()
        self._nodes.heard(request.topic, self.url, headers.get(HEADER), now)
        closes = headers.get("connection", "").lower() == "close"
        # After any other error the server closes only for an unread body.
        if closes and (status < 400 or status in {408, 503}):
            self._nodes.leaving(self.url, now)
        elif status in {500, 503} and headers.get("broker-error") in CUT_OFF:
            self._nodes.lost(self.url, now)
        else:
            self._nodes.answered(self.url)

    @override
    def close(self, reason: str = "the connection was closed on this side") -> None:
        self._closed_here = True
        super().close(reason)

    @override
    def got(self, reply: Reply) -> None:
        super().got(reply)
        if not self.ours and OURS in reply.headers:
            self.ours = True
            self._nodes.showed_ours(self.url)

    @override
    def head(self, request: outbound.Ask) -> bytes:
        key = (request.method, request.path, tuple(request.headers.items()))
        head = self._heads.get(key)
        if head is None:
            head = super().head(request)
            if len(self._heads) < HEADS_KEPT_MAX and not _is_used_once(request):
                self._heads[key] = head
        return head + self._limit + self._credentials.line


def _is_used_once(request: outbound.Ask) -> bool:
    """Return whether the head of a request occurs once, except for retries."""
    headers = request.headers
    is_counted = KEY.name in headers or PRODUCER_NUMBER in headers
    return is_counted or "/stages/" in request.path
