"""Turn a method for asyncio into a blocking one, with the same signature and documentation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

_HOME: Final = "broker.client.sync"
"""The module that the documentation names as the home of blocking methods."""


class Blocking(Protocol[A_co]):
    """Holds an object with asyncio methods on the loop's thread, and waits for the results of its calls."""

    @property
    def _client(self) -> A_co:
        """The object with the asyncio methods."""

    def _wait(self, work: Awaitable[T]) -> T:
        """Wait for one of its calls, and return the result."""


def described(call: Callable[P, T], method: Callable[..., Any]) -> Callable[P, T]:
    """Copy the name, the documentation and the signature of ``method`` to ``call``, for ``help``."""
    functools.update_wrapper(call, method)
    signature = inspect.signature(method)
    given = str(signature.return_annotation).replace("AsyncGenerator", "Generator")
    given = given.replace("Reading", "SyncReading")
    owner, _, name = method.__qualname__.partition(".")
    call.__module__, call.__qualname__ = _HOME, f"Sync{owner}.{name}"
    vars(call)["__signature__"] = signature.replace(return_annotation=given)
    return call


def made(
    door: Callable[..., Any],
    method: Callable[Concatenate[A, P], T],
    client: A,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call ``method``. The TypeError for arguments that it does not take names ``door``, which the caller called."""
    try:
        return method(client, *args, **kwargs)
    except TypeError:
        try:
            inspect.signature(door).bind(None, *args, **kwargs)
        except TypeError as wrong:
            raise TypeError(f"{door.__qualname__}(): {wrong}.") from None
        raise


def blocking(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A_co], P], T]:
    """Return the blocking form of a method."""

    def call(self: Blocking[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(made(call, method, self._client, *args, **kwargs))

    return described(call, method)
