"""The gate: each request passes it before the node reads its body.

In the mode ``open`` all callers may do everything, and the gate asks nothing. In the mode ``required`` a request has
credentials, and a grant allows its action. A caller that has no right at all in a topic gets the answer of a topic that does
not exist, so that it does not learn which topics there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from broker.access.credential_kinds import AUTHORIZATION, INVALID, CredentialKind, TokenCredentials
from broker.access.grants import ABOUT_TOPICS
from broker.access.rules import Rules
from broker.errors import Forbidden, Unauthenticated
from broker.http.request import PathNames
from broker.model import TopicId
from broker.operations.operation import Action
from broker.principal import ANYONE, NODE, Principal, Remote
from broker.topics.registry import not_found

_OF_NODES: Final = frozenset(
    {
        Action.CLUSTER_VIEW,
        Action.TRANSACTIONS,
        Action.TRANSACTIONS_ALL,
        Action.TRANSACTIONS_RESET,
    }
)
"""The actions that a node may do at another node in its own name: it asks for reports, and passes on its parts' calls of the service."""


class AccessGate(Protocol):
    """Tells callers apart, and decides what they may do.

    Attributes:
        is_open: all callers may do everything, so that a request need not be asked for its caller.
    """

    is_open: bool

    def identify(self, headers: Mapping[str, str], remote: Remote) -> Principal:
        """Return the caller of a request with these headers. Raises Unauthenticated, Unavailable, CallerPending."""

    def authorize(self, principal: Principal, action: Action, names: PathNames) -> None:
        """Return if a caller may do an action on what a path names. Raises Forbidden, TopicNotFound, Unauthenticated."""

    def sees(self, principal: Principal, topic: TopicId) -> bool:
        """Return whether a caller may know that a topic exists."""


class OpenGate:
    """The gate of the mode ``open``."""

    is_open = True

    def identify(self, headers: Mapping[str, str], remote: Remote) -> Principal:
        """Return ANYONE."""
        del headers, remote
        return ANYONE

    def authorize(self, principal: Principal, action: Action, names: PathNames) -> None:
        """Allow every action."""

    def sees(self, principal: Principal, topic: TopicId) -> bool:
        """Return True."""
        del principal, topic
        return True


class RequiredGate:
    """The gate of the mode ``required``."""

    is_open = False

    def __init__(
        self,
        rules: Callable[[], Rules],
        now_ms: Callable[[], int],
        *,
        bearers: Iterable[CredentialKind] = (),
        others: Iterable[CredentialKind] = (),
    ) -> None:
        """Decide by ``rules()``, which may raise Unavailable if they are too old.

        Args:
            rules: the rules in force.
            now_ms: the time, in ms since 1970.
            bearers: kinds of credentials in the header ``Authorization``, beside the broker's tokens.
            others: kinds that count for a request without that header. The first one that it has names its caller.
        """
        self._rules = rules
        self._bearers: tuple[CredentialKind, ...] = (TokenCredentials(rules, now_ms), *bearers)
        self._others = tuple(others)

    def identify(self, headers: Mapping[str, str], remote: Remote) -> Principal:
        """Return the principal of the credentials; ANYONE if there are none.

        A request with an ``Authorization`` that no kind knows is refused, whatever else it has.

        Raises Unauthenticated, Unavailable, CallerPending: see ``CredentialKind``.
        """
        is_bearer = AUTHORIZATION in headers
        for kind in self._bearers if is_bearer else self._others:
            principal = kind.principal(headers, remote)
            if principal is not None:
                return principal
        if is_bearer:
            raise Unauthenticated(INVALID)
        return ANYONE

    def authorize(self, principal: Principal, action: Action, names: PathNames) -> None:
        """Return if a grant allows the action."""
        if action is Action.HEALTH:
            return
        if not principal.is_known:
            raise Unauthenticated("This broker asks for credentials: Authorization: Bearer TOKEN.")
        if principal == NODE and action in _OF_NODES:
            return
        topic = names.topic if action in ABOUT_TOPICS else None
        if topic is None and action is Action.DESCRIBE:
            return  # The lists of topics and namespaces are not filtered yet: each known caller sees all names.
        rules = self._rules()
        if rules.decide(principal, action, topic) is not None:
            return
        if topic is not None and not rules.grants.sees(principal, topic):
            raise not_found(topic)
        raise Forbidden(f"{principal.name} may not do this: no grant allows {action}.")

    def sees(self, principal: Principal, topic: TopicId) -> bool:
        """Return whether a grant allows the principal anything in a topic."""
        return self._rules().grants.sees(principal, topic)
