"""How a method for asyncio becomes one that waits: with its signature and its documentation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
A_co = TypeVar("A_co", covariant=True)

_HOME: Final = "broker.client.sync"
"""Where people look for what waits."""


class Blocking(Protocol[A_co]):
    """Has, on the loop's thread, an object with methods for asyncio, and waits for what they do."""

    @property
    def _client(self) -> A_co:
        """That object."""

    def _wait(self, work: Awaitable[T]) -> T:
        """Wait for one of its calls."""


def described(call: Callable[P, T], method: Callable[..., Any]) -> Callable[P, T]:
    """Give ``call`` what ``help`` shows of ``method``."""
    functools.update_wrapper(call, method)
    signature = inspect.signature(method)
    given = str(signature.return_annotation).replace("AsyncGenerator", "Generator")
    given = given.replace("Reading", "SyncReading")
    owner, _, name = method.__qualname__.partition(".")
    if owner == "Reader":
        owner = "Client"
    call.__module__, call.__qualname__ = _HOME, f"Sync{owner}.{name}"
    vars(call)["__signature__"] = signature.replace(return_annotation=given)
    return call


def blocking(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A_co], P], T]:
    """Return the form of a method that waits for its outcome."""

    def call(self: Blocking[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method(self._client, *args, **kwargs))

    return described(call, method)
