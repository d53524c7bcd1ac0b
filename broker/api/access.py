"""Access control: ``Dispatch`` calls an ``Authorize`` function before every handler.

There are no access rules yet, so ``allow_all`` is the only implementation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from broker.http.request import PathNames


class Action(enum.StrEnum):
    """The kinds of action that a rule can allow."""

    ADMIN = "admin"
    PUBLISH = "publish"
    CONSUME = "consume"
    BROWSE = "browse"
    TRANSACTIONS = "transactions"
    CLUSTER = "cluster"


Authorize = Callable[[str | None, Action, PathNames], None]
"""Takes the principal (None: unknown), the action, and the names in the path.

Returns if the action is allowed. Raises Forbidden if not.
"""


def allow_all(principal: str | None, action: Action, resource: PathNames) -> None:
    """Allow every action."""
