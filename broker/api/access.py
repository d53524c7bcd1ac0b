"""Who may do what: the question is asked before every handler; until there are rules, all may."""

from __future__ import annotations

import enum
from collections.abc import Callable

from broker.http.request import PathNames


class Action(enum.StrEnum):
    """The kinds of thing that can be allowed."""

    ADMIN = "admin"
    PUBLISH = "publish"
    CONSUME = "consume"
    BROWSE = "browse"
    TRANSACTIONS = "transactions"
    CLUSTER = "cluster"


Authorize = Callable[[str | None, Action, PathNames], None]
"""Asked with the principal (None: unknown), the action and what the path names.

Returns if it is allowed, raises Forbidden if not.
"""


def allow_all(principal: str | None, action: Action, resource: PathNames) -> None:
    """Allow everything to everyone."""
