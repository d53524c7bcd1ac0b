"""Bring each request about a topic to the topic's leader, on any node.

The handlers themselves know nothing of this. ``Routed.bound`` wraps the handler of each operation that the leader answers::

    from a node?  ──▶ secret, deadline, lane ──▶ led here? ──▶ handler     else 421: never forwarded again
    from a client ──▶ led here? ──▶ handler
                          └──▶ routing: forward, or wait for a leader, until the deadline

Replies name the leader (``Broker-Leader``), so that clients can send the next request to it directly. A node whose store
no other process can open does not: its clients reach it already, perhaps under an address that it does not know.

``OwnService`` brings the calls of a node's own parts, and of its Thrift port, to the leader of the transaction service. If this
node leads, it carries a call out itself. Otherwise the call becomes the request that a client would send over HTTP, forwarded
and retried like such a request; this module decodes the answer.

A node uses it like this::

    leads = lambda topic: epoch_of(topics, topic) is not None
    routing = Routing(tenure, forwarder, clock, metrics, me=me, leads=leads)   # see routing.routing
    routed = Routed(routing, receiving, topics, deadline_s=config.server.request_deadline_s)
    router = Router(make_routes(topics, config, view, routed, transactions, not_ready=…))
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import orjson
from typing_extensions import override

from broker.api.router import Handler
from broker.api.transactions import shown_fields
from broker.errors import (
    BadRequest,
    BrokerError,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    RequestError,
    Unavailable,
    UnavailableError,
    registry,
)
from broker.http.answer import HttpAnswer, NoAnswer
from broker.http.reply import Answer, ChunkedReply, Reply, json_reply
from broker.http.request import Request
from broker.model import TopicId
from broker.operations.media_types import JSON, THRIFT
from broker.operations.operation import Answerer, DeclaredOperation, RepeatEffect
from broker.operations.parameters import (
    IN_GENERATION,
    KEY,
    LEADER,
    LEADER_HEADER,
    NAME_EPOCH,
    PRODUCER_ID,
    PRODUCER_NUMBER,
)
from broker.operations.replies import Leader
from broker.operations.shapes import fits
from broker.operations.table import BY_NAME, OPERATIONS
from broker.places import GENERATION_HEADER
from broker.routing import nodeheaders
from broker.routing.decisions import (
    LOOK_AGAIN,
    OUTCOME,
    Call,
    LeaderSeen,
    PeerAnswer,
    Relayed,
    is_final,
)
from broker.routing.forwarder import READING_S
from broker.routing.nodeheaders import Repeat
from broker.routing.peer_requests import Receiving
from broker.routing.routing import Routing
from broker.topics.reserved import TRANSACTIONS
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from broker.transactions.service_calls import AskedService, ServiceCall, carried_out
from broker.wire.transaction import decode_transaction

REPEATABLE_BY: Final = (KEY.name, PRODUCER_ID)
"""Headers with which a client makes a write repeatable."""
PASSED_ON: Final = (
    "Content-Type",
    "Accept",
    GENERATION_HEADER,
    *(KEY.name, PRODUCER_ID, PRODUCER_NUMBER),
)
"""Request headers that this node forwards to the leader."""
PASSED_BACK: Final = {
    name.lower(): name
    for name in (
        *("Broker-Error", "Broker-Outcome", "Retry-After", NAME_EPOCH),
        *(LEADER | IN_GENERATION),
        *(name for operation in OPERATIONS for name in operation.reply_headers),
    )
}
"""Headers of a leader's reply that this node passes to the client. ``broker.http`` adds this node's own headers."""


class Routed:
    """Binds handlers to leaders."""

    def __init__(
        self, routing: Routing, receiving: Receiving, topics: Topics, *, deadline_s: float
    ) -> None:
        """Keep the parts. ``deadline_s`` is for requests without a deadline of their own."""
        self.routing = routing
        self.receiving = receiving
        self.topics = topics
        self._deadline_s = deadline_s
        self.is_alone = topics.around.is_alone
        """True if no other node can lead."""

    def bound(self, operation: DeclaredOperation, handler: Handler) -> Handler:
        """Return the handler; if the leader answers, one that routes to the leader first. Polls do that themselves."""
        name, effect = operation.name, operation.effect
        if operation.by is not Answerer.LEADER or effect is RepeatEffect.POLL:
            return handler

        async def routed(request: Request) -> Answer:
            if nodeheaders.are_there(request.headers):
                return await self.received(effect, handler, request)
            if self.routing.place(request.topic).here:
                try:
                    return self.told(request.topic, await handler(request))
                except UnavailableError as error:
                    is_elsewhere = error.code in LOOK_AGAIN and error.outcome == "refused"
                    if self.is_alone or not is_elsewhere:
                        raise
            return await self._routed(name, effect, handler, request)

        return routed

    # From clients.

    async def _routed(
        self, name: str, kind: RepeatEffect, handler: Handler, request: Request
    ) -> Answer:
        async def local(repeat: Repeat | None) -> Answer:
            request.repeat = repeat
            return self.told(request.topic, await handler(request))

        answer = await self.routing.answer(self.call(name, kind, request), local)
        return self.passed_back(name, answer) if isinstance(answer, Relayed) else answer

    def call(self, name: str, kind: RepeatEffect, request: Request) -> Call:
        """Return the call that forwards a request to the leader."""
        headers = {
            header: value
            for header in PASSED_ON
            if (value := request.headers.get(header)) is not None
        }
        if request.id:
            headers["X-Request-Id"] = request.id
        query = f"?{request.query_string}" if request.query_string else ""
        deadline = request.deadline
        if deadline is None:
            deadline = self.routing.clock.monotonic() + self._deadline_s
        return Call(
            kind,
            name,
            request.topic,
            request.method,
            request.path + query,
            headers,
            request.body,
            deadline,
            request.source,
            own_key=kind is RepeatEffect.KEYED and is_repeatable(headers),
            principal=request.principal,
        )

    def passed_back(self, name: str, relayed: Relayed) -> Reply | ChunkedReply:
        """Return a leader's answer as an answer of this node."""
        reply = relayed.reply
        given = reply.headers
        if given.get(OUTCOME) == "unknown":
            self.routing.metrics.unknown.add(name)
        headers = tuple((header, given[key]) for key, header in PASSED_BACK.items() if key in given)
        content_type = given.get("content-type", "")
        if relayed.relay is not None:
            return ChunkedReply(_chunks(relayed), content_type, headers)
        chunked = "transfer-encoding" in given and bool(reply.body)
        return Reply(reply.status, reply.body, content_type, headers, chunked=chunked)

    # The header Broker-Leader.

    def told(self, topic: TopicId, answer: Answer) -> Answer:
        """Return this node's answer, with the header that names it as the leader if it leads the topic."""
        epoch = None if self.is_alone else epoch_of(self.topics, topic)
        if epoch is None:
            return answer
        me = self.routing.me
        text = LeaderSeen(me.url, me.instance, epoch).format()
        if isinstance(answer, Reply):
            return answer.with_headers((LEADER_HEADER, text))
        answer.headers = (*answer.headers, (LEADER_HEADER, text))
        return answer

    def should_lead(self, topic: TopicId) -> LeaderSeen | None:
        """Return the node that should lead. None if no node may, or if clients need not be told."""
        place = self.topics.around.tenure.place(topic)
        if self.is_alone or place.node is None:
            return None
        # The epoch of another node is unknown here. A log that this node still has to hand over is in an old epoch.
        epoch = epoch_of(self.topics, topic) if place.here else None
        return LeaderSeen(place.node.url, place.node.instance, epoch)

    async def leader(self, request: Request) -> Answer:
        """Answer the leader's node, URL and epoch. The epoch is null until this node has claimed the topic."""
        topic, me = request.topic, self.routing.me
        await self.topics.get(topic, request.generation)
        place = self.routing.place(topic)
        node = me if place.here else place.node
        url = None if node is None else node.url
        if self.is_alone:
            scheme = self.routing.me.url.partition(":")[0]
            url = f"{scheme}://{request.headers.get('Host', 'localhost')}"
        number = None if node is None else node.instance
        return json_reply(Leader(node=number, url=url, epoch=epoch_of(self.topics, topic)))

    # From nodes.

    async def received(self, kind: RepeatEffect, handler: Handler, request: Request) -> Answer:
        """Answer a request that another node forwarded, or answer that this node does not lead.

        Raises:
            Forbidden: the request does not come from a node.
            ClockSkew: its deadline has passed by this node's clock, which is wrong.
            BrokerError: the errors of the handler, and of Receiving.
        """
        try:
            told, deadline = self.receiving.parse(request.headers, request.body)
        except Overloaded:
            # Either the request is late, or this node's clock is ahead. Compare it with storage's clock, once a minute.
            await self.topics.compare_clock()
            raise
        request.forwarded = True
        request.deadline = deadline
        # A write without an epoch may be a late copy. Epoch 0 is never current, so this node refuses the write and names
        # the current epoch. A sender that still waits for the answer then sends the write again with that epoch.
        asks_epoch = told.repeat.epoch is None
        request.repeat = told.repeat._replace(epoch=0) if asks_epoch else told.repeat
        place = self.routing.place(request.topic)
        if not place.here:
            node = place.node
            if node is None:
                return self._not_leader(NotLeader("No live node may lead the topic."))
            error = NotLeader("Another node leads.", node=node.instance, url=node.url)
            return self._not_leader(error)
        async with self.receiving.turn(told, deadline) as handled:
            try:
                answer = await handler(request)
            except NotLeader as error:
                return self._not_leader(error)
            except BrokerError as error:
                handled.is_final = is_final(
                    kind,
                    PeerAnswer.by_error(error),
                    attempt=told.repeat.attempt,
                    own_key=is_repeatable(request.headers),
                )
                raise
            handled.is_final = True
            return self.told(request.topic, answer)

    def _not_leader(self, error: NotLeader) -> Reply:
        """Return the answer to another node that names the leader, or this node's current epoch."""
        is_me = error.url is None and error.epoch is not None
        told = {
            "code": error.code,
            "message": error.message,
            "retriable": True,
            "outcome": "refused",
            "node": self.routing.me.instance if is_me else error.node,
            "url": self.routing.me.url if is_me else error.url,
            "epoch": error.epoch,
        }
        headers = (("Broker-Error", error.code), ("Broker-Outcome", "refused"))
        return Reply(error.http_status, orjson.dumps(told), JSON, headers)


def epoch_of(topics: Topics, topic: TopicId) -> int | None:
    """Return the epoch in which this node leads a topic. None if it does not lead it, or not yet."""
    state = topics.leaders.states.get(topic)
    return None if state is None or state.leader is None else state.leader.epoch


def is_repeatable(headers: Mapping[str, str]) -> bool:
    """Return whether the client itself made a write repeatable."""
    return any(name in headers for name in REPEATABLE_BY)


async def _chunks(relayed: Relayed) -> AsyncGenerator[bytes, None]:
    """Yield an answer's chunks as they arrive. Raises Unavailable if it is cut off."""
    assert relayed.relay is not None
    try:
        while chunk := await relayed.relay.chunk(READING_S):
            yield chunk
    except NoAnswer as error:
        raise Unavailable(f"The leader's answer was cut off: {error}") from error
    finally:
        relayed.close()


# --- The calls of this node's own parts, and of its Thrift port ---------------------------------------

DEADLINE_S: Final = 10.0
_FIRST: Final[list[type[BrokerError]]] = [BadRequest, NoLeader, Overloaded]
"""The errors that stand for a code which others have, too."""
_BY_CODE: Final = {
    error.code: error for error in (*reversed(registry()), *_FIRST) if error is not NotLeader
}


class OwnService(AskedService):
    """The service of this node's cluster, led by any node. It raises the errors of Transactions, but never NotLeader."""

    def __init__(
        self, local: Transactions, routed: Routed, *, deadline_s: float = DEADLINE_S
    ) -> None:
        """Keep the parts. ``local`` answers if this node leads. ``deadline_s`` bounds calls without a deadline."""
        self._local = local
        self._routing = routed.routing
        self._is_alone = routed.is_alone
        self._deadline_s = deadline_s

    @override
    async def ask(self, call: ServiceCall) -> Any:
        if call.deadline is None:
            call = call._replace(deadline=self._routing.clock.monotonic() + self._deadline_s)
        if self._is_alone:
            return await carried_out(self._local, call)
        answer = await self._routing.answer(_routed(call), lambda _: carried_out(self._local, call))
        if not isinstance(answer, Relayed):
            return answer
        if answer.reply.status != 200:
            raise error_of(answer.reply)
        try:
            return _read(call, answer.reply)
        except Exception as error:
            raise OutcomeUnknown(
                f"{answer.reply.url} answered, but not as a node does: {error}"
            ) from error


def _routed(call: ServiceCall) -> Call:
    """Return a call as the request to another node."""
    operation = BY_NAME[call.name]
    target = operation.template.replace("{transaction}", str(call.of))
    if call.limit is not None:
        target += f"?limit={call.limit}"
    accept = call.accept if len(operation.gives) > 1 else JSON
    body = orjson.dumps(shown_fields(call.sent)) if call.sent else b""
    headers = {"Accept": accept, "Content-Type": JSON}
    assert call.deadline is not None
    return Call(
        operation.effect,
        call.name,
        TRANSACTIONS,
        operation.method,
        target,
        headers,
        body,
        call.deadline,
    )


def _read(call: ServiceCall, reply: HttpAnswer) -> Any:
    operation = BY_NAME[call.name]
    if len(operation.gives) > 1:
        return decode_transaction(reply.body) if call.accept == THRIFT else reply.body
    value = orjson.loads(reply.body)
    if not fits(value, operation.answer):
        raise ValueError("its fields are others")
    return value


def error_of(reply: HttpAnswer) -> BrokerError:
    """Return the error in another node's reply. Its body is JSON or plain text, as the request asked for."""
    try:
        message = str(orjson.loads(reply.body)["message"])
    except (ValueError, KeyError, TypeError):
        message = reply.body.decode("utf-8", "replace")
    if reply.headers.get("broker-outcome") != "refused":
        return OutcomeUnknown(message)
    other = RequestError if reply.status < 500 else Unavailable
    return _BY_CODE.get(reply.headers.get("broker-error", ""), other)(message)
