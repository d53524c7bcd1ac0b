"""The page of actions and roles, made from the table of operations and from the roles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.access.grants import ABOUT_TOPICS, ROLES
from broker.operations.operation import Action, DeclaredOperation
from broker.operations.table import OPERATIONS

_HEAD: Final = """
# Actions and roles

Each operation of the interface needs one action; a [grant](../guides/access.md) allows a role or a single action. An action
about topics is allowed where the grant's pattern names the topic. All other actions need the pattern `*`, except that
`transactions` (transactions of one's own) is allowed by any pattern. `health` needs neither a grant nor credentials. Lists of
topics and namespaces are not filtered yet: every caller with valid credentials sees all names.

## Roles

"""


def access_page() -> str:
    """Return ``docs/reference/access.md``."""
    roles = _table(("action", "about", *ROLES), map(_role_row, Action))
    operations = _table(("operation", "request", "action"), map(_operation_row, OPERATIONS))
    return f"{_HEAD}{roles}\n## Operations\n\n{operations}"


def _role_row(action: Action) -> tuple[str, ...]:
    about = "a topic" if action in ABOUT_TOPICS else "the broker"
    return (f"`{action}`", about, *("x" if action in actions else "" for actions in ROLES.values()))


def _operation_row(operation: DeclaredOperation) -> tuple[str, ...]:
    request = f"`{operation.method} {operation.template}`"
    return operation.summary, request, f"`{operation.action}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
