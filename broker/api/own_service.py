"""The transaction service for this node's own parts and its Thrift port, on any node of a cluster.

If this node leads the service, it answers a call at once. Otherwise the call becomes the request that a client would send
over HTTP, forwarded and retried like such a request (routing/routing.py); this module decodes the answer.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from typing_extensions import override

from broker.api.routed import Routed
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
    registry,
)
from broker.http.answer import HttpAnswer
from broker.operations.media_types import JSON, THRIFT
from broker.operations.shapes import fits
from broker.operations.table import BY_NAME
from broker.routing.routed_calls import Call, Relayed
from broker.topics.reserved import TRANSACTIONS
from broker.transactions.service import Transactions
from broker.transactions.service_calls import AskedService, ServiceCall, carried_out
from broker.wire.transaction import decode_transaction

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
