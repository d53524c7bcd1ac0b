"""Handlers of tokens and grants. They read and change the records, also in the mode ``open``: so access can be prepared."""

from __future__ import annotations

from typing import Final

from broker.access.access_records import AccessRecords
from broker.access.grants import EVERY, GROUP, Grant, Grants, check_who, checked_grant
from broker.access.tokens import Token
from broker.api import asked
from broker.errors import BadRequest
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import TopicId, check_topic
from broker.operations.operation import Action
from broker.operations.replies import (
    Decision,
    GrantChanged,
    GrantList,
    GrantShown,
    TokenList,
    TokenMade,
    TokenRevoked,
    TokenShown,
)
from broker.operations.scalars import TTL_MAX_S
from broker.operations.sent import GrantSent, TokenSent
from broker.principal import Principal

SENT_BYTES_MAX: Final = 16 * 1024


class AccessHandlers:
    """The handlers of tokens and grants."""

    def __init__(self, access: AccessRecords) -> None:
        """Keep the records."""
        self._access = access

    async def create_token(self, request: Request) -> Answer:
        """Make a token. Only this answer shows it."""
        body: TokenSent = asked.read_small(request.body, TokenSent, bytes_max=SENT_BYTES_MAX)
        principal, life_s = body["principal"], body.get("expires_s")
        check_principal(principal)
        if life_s is not None and not 1 <= life_s <= TTL_MAX_S:
            raise BadRequest(f"expires_s must be from 1 to {TTL_MAX_S} seconds.")
        text, token = await self._access.create_token(
            principal, None if life_s is None else life_s * 1000
        )
        return json_reply(TokenMade(token=text, **_token(token)))

    async def tokens(self, request: Request) -> Answer:
        """Answer all tokens, without their secrets."""
        del request
        stored = await self._access.stored()
        tokens = sorted(stored.tokens.values(), key=lambda each: (each.principal, each.created_ms))
        return json_reply(TokenList(tokens=[_token(each) for each in tokens]))

    async def revoke_token(self, request: Request) -> Answer:
        """Revoke a token."""
        token = await self._access.revoke_token(request.names.who)
        return json_reply(TokenRevoked(revoked=token.id, principal=token.principal))

    async def grant(self, request: Request) -> Answer:
        """Add a grant."""
        body: GrantSent = asked.read_small(request.body, GrantSent, bytes_max=SENT_BYTES_MAX)
        grant = checked_grant(body["who"], body["what"], body.get("pattern", EVERY))
        changed = await self._access.grant(grant)
        return json_reply(GrantChanged(grant=_grant(grant), changed=changed))

    async def grants(self, request: Request) -> Answer:
        """Answer all grants."""
        del request
        stored = await self._access.stored()
        return json_reply(GrantList(grants=[_grant(each) for each in stored.grants.all()]))

    async def revoke_grant(self, request: Request) -> Answer:
        """Remove a grant. Refuse to remove the last one of an administrator by accident."""
        query = request.query
        pattern = query.get("pattern", EVERY)
        grant = checked_grant(_needed(request, "who"), _needed(request, "what"), pattern)
        if query.get("force") != "true":
            check_not_last((await self._access.stored()).grants, grant)
        changed = await self._access.revoke(grant)
        return json_reply(GrantChanged(grant=_grant(grant), changed=changed))

    async def decide(self, request: Request) -> Answer:
        """Answer whether a principal may do an action, and which grant allows it."""
        who, named = _needed(request, "who"), _needed(request, "action")
        check_who(who)
        if named not in set(Action):
            raise BadRequest(f"action: {named!a:.80} is none of {', '.join(Action)}.")
        text = request.query.get("topic")
        topic = None if text is None else _topic(text)
        is_group = who.startswith(GROUP)
        asking = Principal("", frozenset({who.removeprefix(GROUP)})) if is_group else Principal(who)
        grant = (await self._access.stored()).decide(asking, Action(named), topic)
        shown = None if grant is None else _grant(grant)
        return json_reply(Decision(allowed=grant is not None, grant=shown))


def check_principal(name: str) -> None:
    """Raise BadRequest if a text can't be a principal's name."""
    check_who(name)
    if name.startswith(GROUP):
        raise BadRequest(f"{GROUP} begins the name of a group, and a token is for a principal.")


def check_not_last(grants: Grants, revoked: Grant) -> None:
    """Raise BadRequest if no grant of all of access is left without ``revoked``."""
    left = [each for each in grants.all() if each != revoked]
    if _administrates(revoked) and not any(map(_administrates, left)):
        raise BadRequest(
            "This is the last grant that allows access: without it no caller could change grants any more. "
            "To revoke it in spite of that, add force=true."
        )


def _administrates(grant: Grant) -> bool:
    return grant.allows(Action.ACCESS, None)


def _needed(request: Request, name: str) -> str:
    text = request.query.get(name)
    if text is None:
        raise BadRequest(f"{name}: this parameter is missing.")
    return text


def _topic(text: str) -> TopicId:
    namespace, slash, name = text.partition("/")
    if not slash:
        raise BadRequest(f"topic: give NAMESPACE/TOPIC, not {text!a:.80}.")
    return check_topic(namespace, name)


def _token(token: Token) -> TokenShown:
    return TokenShown(
        id=token.id,
        principal=token.principal,
        created_ms=token.created_ms,
        expires_ms=token.expires_ms,
    )


def _grant(grant: Grant) -> GrantShown:
    return GrantShown(who=grant.who, what=grant.what, pattern=grant.pattern)
