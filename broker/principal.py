"""The caller of a request, as the node knows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple


class Principal(NamedTuple):
    """A person or a program, by the name in its credentials.

    Attributes:
        name: its name; empty if the request has no credentials, or the node asks for none.
        groups: the names of the groups to which it belongs.
    """

    name: str = ""
    groups: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        """True if the node has checked credentials of this caller."""
        return bool(self.name)


ANYONE: Final = Principal()
"""Any caller: nothing is known about it."""
NODE: Final = Principal("*node")
"""The node itself. No credentials have this name, since ``*`` is in no valid name."""


class Remote(NamedTuple):
    """The other end of a connection.

    Attributes:
        address: its address; empty within the process.
        certificate: what its verified certificate says, as ``ssl.SSLSocket.getpeercert`` returns it; None: it has none.
    """

    address: str = ""
    certificate: Mapping[str, Any] | None = None


NOWHERE: Final = Remote()
"""The other end of a call within the process."""


class CallerPending(Exception):
    """The node is fetching what it needs to check the credentials of a request. Ask again after ``fetched()``."""

    def __init__(self, fetched: Callable[[], Awaitable[None]]) -> None:
        """Keep the function that waits."""
        super().__init__("The credentials can't be checked yet.")
        self.fetched = fetched
