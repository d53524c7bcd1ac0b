"""Call code of users. However such a call ends, its end is a value: no error of it ends the work around it.

The one rule for handlers, listeners, decoders, callbacks and stores of users::

    returns                              done
    raises anything                      one failed try: also StopIteration, GeneratorExit, a CancelledError of its own,
                                         or a BaseException of its own
    raises SystemExit, KeyboardInterrupt the program ends, after the caller has let its claims go
    lasts longer than its limit          one failed try

A raised exception can't be passed on as such: asyncio refuses a StopIteration as the result of a future, and it takes
a CancelledError for the cancellation of the task around it. So ``Ended`` carries it.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")

TEXT_BYTES_MAX: Final = 1024
TRACEBACK_BYTES_MAX: Final = 65_536
_ENDS_PROGRAM: Final = (SystemExit, KeyboardInterrupt)


class Ended(NamedTuple, Generic[T]):
    """The end of a call: its value, or the error that it raised."""

    value: T | None
    error: BaseException | None = None

    def result(self) -> T:
        """Return the value, or raise the error."""
        error = self.error
        if error is None:
            return cast("T", self.value)
        try:
            raise error
        finally:
            del self, error  # Without this, the error's traceback would hold the error.

    def checked(self) -> T:
        """Return the value, or raise the error in a form that can be raised anywhere.

        Raises:
            Exception, SystemExit, KeyboardInterrupt: as the code raised them.
            EndedOddly: it raised anything else, such as a CancelledError of its own. The cause has it.
        """
        error = self.error
        try:
            if error is None or ends_program(error):
                return self.result()
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return self.result()
            raise EndedOddly(f"It raised {text_of(error)}.") from error
        finally:
            del self, error


class EndedOddly(RuntimeError):
    """User code raised what is no error of a call, such as a CancelledError of its own. The cause has it."""


class TookTooLong(TimeoutError):
    """A call of user code lasted longer than its limit, and was cancelled."""


def ends_program(error: BaseException | None) -> bool:
    """Return whether an error asks the program to end: SystemExit, KeyboardInterrupt, or a group that has one."""
    return error is not None and any(isinstance(each, _ENDS_PROGRAM) for each in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group and of the groups in it, in their order; of any other error, the error itself."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each


def call(function: Callable[..., T], *arguments: Any) -> Ended[T]:
    """Call a function in this thread.

    A coroutine makes the call. In Python 3.11 its frame has no link to this one: a link would lead from the traceback of
    the error to the caller's frame, which may have a name for the error. From 3.12 on there is a link, so this frame has
    no name for it, and neither may its caller when it returns.
    """
    try:
        _called(function, arguments).send(None)
    except StopIteration as done:
        return cast("Ended[T]", done.value)
    raise AssertionError("it awaits no future")


async def _called(function: Callable[..., T], arguments: tuple[Any, ...]) -> Ended[T]:
    try:
        return Ended(function(*arguments))
    except BaseException as error:  # noqa: BLE001 - The value carries it; see the module.
        return Ended(None, error)


async def run(
    function: Callable[..., Awaitable[T]], *arguments: Any, limit_s: float | None = None
) -> Ended[T]:
    """Call an asynchronous function in a task of its own, for at most ``limit_s`` seconds.

    If the caller is cancelled, the task is cancelled, too; this returns when the task has ended.
    """
    caller = asyncio.current_task()
    assert caller is not None, "this is called in a task"
    cancels_before = caller.cancelling()
    task = asyncio.create_task(_ended(function, arguments))
    late: list[bool] = []

    def too_long() -> None:
        late.append(task.cancel())

    timer = None if limit_s is None else asyncio.get_running_loop().call_later(limit_s, too_long)
    try:
        ended = await task
    except (
        asyncio.CancelledError
    ) as error:  # The function cancelled its own task, or it never began.
        ended = Ended(None, error)
    finally:
        if timer is not None:
            timer.cancel()
    if caller.cancelling() > cancels_before:
        raise asyncio.CancelledError
    if any(late):
        return Ended(None, TookTooLong(f"it took longer than {limit_s:g} s"))
    return ended


async def _ended(function: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]) -> Ended[T]:
    try:
        return Ended(await function(*arguments))
    except BaseException as error:  # noqa: BLE001 - The value carries it; see the module.
        return Ended(None, error)


def text_of(error: BaseException, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Return an error's type and text, as text that UTF-8 can encode, of at most ``bytes_max`` bytes.

    An error of a user may have a lone surrogate in its text, a text of any length, or a ``__str__`` that fails.
    """
    named = call(lambda: f"{type(error).__name__}: {error}".removesuffix(": "))
    return storable(named.value or f"{type(error).__name__}, whose text can't be had", bytes_max)


def storable(text: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Return a foreign text as one that UTF-8 can encode, cut to ``bytes_max`` bytes."""
    return text.encode("utf-8", "backslashreplace")[:bytes_max].decode("utf-8", "ignore")


def traceback_of(error: BaseException) -> BaseException | None:
    """Return an error for ``exc_info`` of a log line; None if a log could not take its traceback.

    Handlers of logs drop a line that they can't encode, and one of a megabyte fills a disk.
    """
    try:
        told = "".join(traceback.format_exception(error)).encode()
    except Exception:  # noqa: BLE001 - Formatting calls methods of the user's error.
        return None
    return error if len(told) <= TRACEBACK_BYTES_MAX else None


def check_takes(function: object, arguments: int, name: str, *, may_yield: bool = False) -> None:
    """Check before the first call that ``function`` can be called with so many arguments by position.

    Raises:
        TypeError: it can't, or it is a generator, whose body no call would run, unless it ``may_yield``.
    """
    if not callable(function):
        raise TypeError(f"{name} is a function, not {type(function).__name__}.")
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - See below.
        yields = inspect.isgeneratorfunction(each) and not may_yield
        if yields or inspect.isasyncgenfunction(each):
            raise TypeError(f"{name} has a yield in it: no call would run it.")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # A function written in C may have no signature.
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        takes = "1 argument" if arguments == 1 else f"{arguments} arguments"
        raise TypeError(f"{name} is called with {takes} by position: {error}.") from None


def check_plain(function: object, arguments: int, name: str, *, may_yield: bool = False) -> None:
    """Do as ``check_takes``. Raises TypeError, too, if the function is asynchronous."""
    check_takes(function, arguments, name, may_yield=may_yield)
    if any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None)))):  # noqa: B004
        raise TypeError(f"{name} is asynchronous: no call would await it.")
