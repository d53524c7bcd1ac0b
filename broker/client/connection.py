"""The connection that writes are sent on, several at a time if the server is ours.

What HTTP needs is in ``broker.http.asking``; here is what it means to a client: an outcome by its name
(``outcomes``), what an answer tells of the cluster (``leaders``), and whether the server may be sent the
next request before the last is answered. Pipelining starts with the second request, after an answer
showed that the server is this project's: of the original nobody knows whether it answers in order.
Reading uses aiohttp (see ``transport``).

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
import select
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from broker.client import outcomes
from broker.client.leaders import HEADER, Nodes
from broker.client.protocol import Reply, Request
from broker.http import asking
from broker.http.address import Address
from broker.http.answer import NoAnswer, NotSent
from broker.model import TopicId

OURS: Final = "x-request-id"
"""The header by which an answer shows that the server is this project's."""

HEADS_KEPT_MAX: Final = 256


class Connection(asking.Connection):
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
        self, url: str, headers: Mapping[str, str], nodes: Nodes, idle_s_max: float
    ) -> None:
        super().__init__(Address.of(url), headers)
        self.url = url
        self.ours = False
        self._nodes = nodes
        self._idle_s_max = idle_s_max
        self._left = False
        self._poll: select.poll | None = None
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    def good_for(self, topic: TopicId | None) -> bool:
        """Whether a request about a topic may go out on it, and belongs to its node."""
        if not self.usable:
            return False
        now = self._loop.time()
        if not self.requests_in_flight and (
            self.idle_since < now - self._idle_s_max or self._something_arrived()
        ):
            return False
        return self._nodes.place(topic, now) == self.url

    def _something_arrived(self) -> bool:
        """Whether the socket has an end, or last words, that the loop has not come to yet."""
        if self._poll is None and self._transport is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return self._poll is not None and bool(self._poll.poll(0))

    async def send(self, request: Request, timeout_s: float) -> Reply:
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
        note_reply(self._nodes, self.url, request, reply.status, reply.headers)
        return reply

    def _lost(self) -> None:
        if not self._left:
            self._nodes.lost(self.url, self._loop.time())

    @override
    def close(self) -> None:
        """Close it; requests under way end as unanswered."""
        self._left = True
        super().close()

    @override
    def got(self, reply: Reply) -> None:
        super().got(reply)
        self.ours = self.ours or OURS in reply.headers

    @override
    def head(self, request: asking.Ask) -> bytes:
        key = (request.method, request.path, tuple(request.headers.items()))
        head = self._heads.get(key)
        if head is None:
            head = super().head(request)
            if len(self._heads) < HEADS_KEPT_MAX and not _comes_once(request):
                self._heads[key] = head
        return head


def _comes_once(request: asking.Ask) -> bool:
    """Whether a request has a head that does not come again, but for a retry."""
    headers = request.headers
    is_counted = "Idempotency-Key" in headers or "Producer-Number" in headers
    return is_counted or "/stages/" in request.path


def note_reply(
    nodes: Nodes, url: str, request: Request, status: int, headers: Mapping[str, str]
) -> None:
    """Note what an answer of the node at ``url`` tells of the cluster."""
    now = asyncio.get_running_loop().time()
    nodes.heard(request.topic, url, headers.get(HEADER), now)
    if headers.get("connection", "").lower() == "close" and (status < 400 or status in {408, 503}):
        nodes.leaving(url, now)  # With other errors it means only that a body was not read.
    else:
        nodes.answered(url)
