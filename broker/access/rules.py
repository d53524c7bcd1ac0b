"""The rules of access in force: one immutable value that a node swaps as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.access.grants import Grant, Grants
from broker.access.quotas import Quotas
from broker.access.tokens import Token, id_of
from broker.model import TopicId
from broker.operations.operation import Action
from broker.principal import Principal

DECISIONS_MAX: Final = 50_000
"""The most decisions that are kept. A client that asks for ever new topics makes the node begin anew."""

_Asked = tuple[Principal, Action, TopicId | None]


@dataclass(frozen=True)
class Rules:
    """All tokens, grants and quotas, as read at one time. ``problems`` are errors of records that have no effect."""

    tokens: Mapping[str, Token] = field(default_factory=dict)
    grants: Grants = field(default_factory=Grants)
    problems: tuple[str, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)
    _decided: dict[_Asked, Grant | None] = field(default_factory=dict, repr=False, compare=False)

    def token(self, text: str, now_ms: int) -> Token | None:
        """Return the token with a text; None if there is none, or it has expired."""
        identifier = id_of(text)
        token = None if identifier is None else self.tokens.get(identifier)
        return token if token is not None and token.is_valid(text, now_ms) else None

    def decide(self, principal: Principal, action: Action, topic: TopicId | None) -> Grant | None:
        """Return the grant that allows an action; None if it is denied."""
        asked = principal, action, topic
        try:
            return self._decided[asked]
        except KeyError:
            pass
        if len(self._decided) >= DECISIONS_MAX:
            self._decided.clear()
        grant = self._decided[asked] = self.grants.decide(principal, action, topic)
        return grant
