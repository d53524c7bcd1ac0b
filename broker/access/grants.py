"""Grants: a principal or a group may do some actions in the topics that a pattern names. Pure.

All is denied that no grant allows. A pattern is ``*``, ``namespace/*`` or ``namespace/topic``. Some actions are about no
topic. For these the pattern must be ``*``; but a principal may have transactions of its own whatever the pattern is, since
they show nothing of other callers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from broker.errors import BadRequest
from broker.model import TopicId
from broker.operations.operation import Action
from broker.principal import Principal

EVERY: Final = "*"
GROUP: Final = "group:"
"""The beginning of the name of a group in a grant."""
_PATTERN: Final = re.compile(r"\*|[a-zA-Z0-9_]+/(\*|[a-zA-Z0-9_-]+)")
_WHO: Final = re.compile(r"(group:)?[a-zA-Z0-9_.@:/|+-]{1,128}")

ABOUT_TOPICS: Final = frozenset(
    {
        Action.DESCRIBE,
        Action.PUBLISH,
        Action.ROLLBACK,
        Action.CONSUME,
        Action.BROWSE,
        Action.CURSORS,
        Action.CURSORS_ALL,
        Action.SETTINGS,
        Action.DELETE,
    }
)
"""The actions for which the pattern of a grant counts."""
_READER: Final = frozenset({Action.DESCRIBE, Action.CONSUME, Action.BROWSE, Action.CURSORS})
_WRITER: Final = frozenset({Action.DESCRIBE, Action.PUBLISH, Action.ROLLBACK, Action.TRANSACTIONS})
ROLES: Final[Mapping[str, frozenset[Action]]] = {
    "reader": _READER,
    "writer": _WRITER,
    "owner": ABOUT_TOPICS | {Action.TRANSACTIONS},
    "operator": frozenset(
        {
            Action.DESCRIBE,
            Action.CURSORS_ALL,
            Action.TRANSACTIONS,
            Action.TRANSACTIONS_ALL,
            Action.TRANSACTIONS_RESET,
            Action.CLUSTER_VIEW,
            Action.CLUSTER_CHANGE,
            Action.METRICS,
        }
    ),
    "admin": frozenset(Action),
}
"""Named sets of actions."""


class Grant(NamedTuple):
    """One grant. ``what`` is the name of a role or of an action; ``who`` a principal's name, or ``group:`` and a name."""

    who: str
    what: str
    pattern: str = EVERY

    @property
    def actions(self) -> frozenset[Action]:
        """The actions that it allows."""
        return ROLES.get(self.what) or frozenset({Action(self.what)})

    def covers(self, topic: TopicId | None) -> bool:
        """Return whether its pattern names a topic; None: all of the broker."""
        if self.pattern == EVERY:
            return True
        if topic is None:
            return False
        namespace, _, name = self.pattern.partition("/")
        return namespace == topic.namespace and name in (EVERY, topic.topic)

    def allows(self, action: Action, topic: TopicId | None) -> bool:
        """Return whether it allows an action in a topic; None: the action is about no topic."""
        if action not in self.actions:
            return False
        return action is Action.TRANSACTIONS or self.covers(topic)


def checked_grant(who: str, what: str, pattern: str) -> Grant:
    """Return a grant. Raises BadRequest if a part of it is not valid."""
    check_who(who)
    if what not in ROLES and what not in set(Action):
        known = ", ".join([*ROLES, *Action])
        raise BadRequest(f"{what!a:.80} is neither a role nor an action. There are {known}.")
    if not _PATTERN.fullmatch(pattern):
        raise BadRequest(f"A pattern is *, NAMESPACE/* or NAMESPACE/TOPIC, not {pattern!a:.80}.")
    return Grant(who, what, pattern)


def check_who(who: str) -> None:
    """Raise BadRequest if a text can't be the name of a principal, or ``group:`` and the name of a group."""
    if not _WHO.fullmatch(who):
        raise BadRequest(
            f"{who!a:.80} is not a name: it has 1 to 128 letters, digits and . _ @ : / | + -."
        )


class Grants:
    """All grants, by the name that they are for."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        """Keep the grants."""
        self._of: dict[str, list[Grant]] = {}
        for grant in grants:
            self._of.setdefault(grant.who, []).append(grant)

    def of(self, principal: Principal) -> list[Grant]:
        """Return the grants of a principal: first its own, then those of its groups."""
        names = [principal.name, *sorted(GROUP + group for group in principal.groups)]
        return [grant for name in names for grant in self._of.get(name, ())]

    def all(self) -> list[Grant]:
        """Return all grants, sorted."""
        return sorted(grant for grants in self._of.values() for grant in grants)

    def decide(self, principal: Principal, action: Action, topic: TopicId | None) -> Grant | None:
        """Return the first grant that allows an action; None if it is denied."""
        for grant in self.of(principal):
            if grant.allows(action, topic):
                return grant
        return None

    def sees(self, principal: Principal, topic: TopicId) -> bool:
        """Return whether any grant allows the principal anything in a topic, so that it may know that it exists."""
        return any(
            grant.covers(topic) and not ABOUT_TOPICS.isdisjoint(grant.actions)
            for grant in self.of(principal)
        )


def words(actions: Collection[Action]) -> str:
    """Return the names of actions, for people."""
    return ", ".join(sorted(actions))
