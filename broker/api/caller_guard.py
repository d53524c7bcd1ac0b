"""Guard the handlers that end, forget or show transactions of other callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from broker import logs
from broker.api.own_service import OwnService
from broker.api.router import Handler
from broker.api.transactions import truncated
from broker.config.sections import Config
from broker.http.reply import Answer, Reply
from broker.http.request import Request
from broker.model import Snapshot
from broker.routing import nodeheaders
from broker.topics.settlement import bound_of
from broker.topics.topics import Topics
from broker.transactions.hidden_messages import Unhiding

TRUNCATE: Final = "truncate_transactions"
_UNHIDING: Final = {"reset_transactions": "reset", TRUNCATE: "truncation"}
_NOTED: Final = {"invalidate_transaction": "invalidated", "prune_transactions": "removed"}
"""Operations that are logged if this field of their answer says that they changed anything."""

log = logs.get_logger()


def unhiding_of(own: OwnService, config: Config, topics: Topics) -> Unhiding:
    """Return the guard of the operations that show hidden messages, with the permissions of a configuration."""
    around, told = topics.around, config.transactions

    def settled_below(snapshot: Snapshot) -> int:
        settings = around.settings
        return bound_of(
            snapshot,
            now_ms=around.clock.now_ms(),
            life_ms=settings.transaction_life_max_s * 1000,
            margin_ms=settings.sweep_margin_ms,
        )

    prunes = settled_below if told.transactions_prune_allowed else None
    return Unhiding(own, allowed=told.transactions_reset_allowed, prunes=prunes)


def guarded(handlers: Mapping[str, Handler], unhiding: Unhiding) -> dict[str, Handler]:
    """Return the handlers, with a check before those that show hidden messages, and a log line after those of ``_NOTED``.

    A request with the headers of a node was checked and logged by that node; the handler verifies them.
    """

    def own(request: Request) -> bool:
        return not nodeheaders.are_there(request.headers)

    def checked(name: str, handler: Handler) -> Handler:
        async def check(request: Request) -> Answer:
            if own(request):
                is_asked = name == TRUNCATE and unhiding.asks_for_ids
                ids, _ = await truncated(request) if is_asked else ((), None)
                await unhiding.check(
                    _UNHIDING[name], request.caller, request.id, ids=ids, deadline=request.deadline
                )
            return await handler(request)

        return check

    def noted(name: str, handler: Handler) -> Handler:
        async def note(request: Request) -> Answer:
            answer = await handler(request)
            if own(request) and isinstance(answer, Reply) and answer.status == 200:
                field = _NOTED[name]
                changed = orjson.loads(answer.body)[field]
                if changed and request.hold.may_log():
                    log.info(
                        "transactions ended by a caller",
                        operation=name,
                        path=request.path,
                        caller=request.caller,
                        request_id=request.id,
                        **{field: changed},
                    )
            return answer

        return note

    return {
        name: checked(name, handler)
        if name in _UNHIDING
        else noted(name, handler)
        if name in _NOTED
        else handler
        for name, handler in handlers.items()
    }
