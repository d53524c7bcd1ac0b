"""The bridge between the threads of a program and the event loop of a blocking client.

The loop runs in a daemon thread of its own. A thread waits for work on the loop. Meanwhile the loop may ask that
thread to make a call, because handlers and participants belong to the thread that runs them::

    a thread of the program                         the loop's thread
    wait(work) ───────────────────────────────────▶ runs the work
    CallersThread.serve(…) makes a call  ◀──────────────── submit(call)
               └─ its value, or its error ────────▶ goes on

* The loop's own thread never waits for the loop. Code of the program runs there, too: done-callbacks, ``on_trouble``,
  finalizers of collected objects. A call that would wait raises RuntimeError there; ``ask`` does not wait.
* An error of any type crosses: futures take neither a StopIteration nor an exit of the program as they are.
* The bridge ends when its client is closed, or at the exit of the program, while daemon threads still run. After
  that, work is refused, and finalizers do not wait for a loop that has stopped. A daemon thread that waits for work at
  the exit ends with the program, without an error.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

from broker import user_code
from broker.client.handler import Interrupted

P = ParamSpec("P")
T = TypeVar("T")

ENDING_S: Final = 1.0
"""How long calls may take to end after the client is closed."""
EXIT_S: Final = 3.0
"""How long the exit of the program waits for the end of a bridge."""

_OPEN: Final = weakref.WeakSet["Bridge"]()
_exits: Final = threading.Event()
"""Set at the exit of the program."""


class Bridge:
    """An event loop in a daemon thread, for the other threads of the program."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        # A finalizer may run at any allocation, also while its thread holds this lock.
        self._guard = threading.RLock()
        self._ended = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="broker-client", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    @property
    def is_here(self) -> bool:
        """True in the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def submit(self, work: Awaitable[T]) -> Future[T]:
        """Begin work on the loop.

        Raises:
            RuntimeError: the client is closed, or was made before a fork.
        """
        if self.process_id == os.getpid():
            with self._guard:
                if not self._ended:
                    return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)
        give_up(work)
        if not self.is_here:
            _stay_at_exit()
        if self.process_id != os.getpid():
            raise RuntimeError("This was made before a fork. Make it anew in the child process.")
        raise RuntimeError("This client is closed.")

    def ask(self, work: Awaitable[Any]) -> None:
        """Begin work on the loop, unless the bridge has ended; don't wait for it."""
        with suppress(RuntimeError):
            self.submit(work)

    def check_may_wait(self) -> None:
        """Raise RuntimeError in the loop's own thread."""
        if self.is_here:
            raise RuntimeError(
                "The client's own thread calls this code (a done-callback, on_trouble, a finalizer), so it can't wait "
                "for the client here. Make the call in another thread, or use publish_later."
            )

    def wait(self, work: Awaitable[T]) -> T:
        """Run work on the loop and wait for it; an interrupt of the wait cancels it. Raises its error, as ``submit`` does."""
        if self.is_here:
            give_up(work)
            self.check_may_wait()
        future = self.submit(work)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if isinstance(error, CancelledError):
                _stay_at_exit()
            raise
        finally:
            del future  # Without this, the error's traceback would hold the error.

    def end(self, within_s: float | None = None) -> None:
        """Refuse further work, end what is left, and stop the thread. A second call does nothing."""
        with self._guard:
            if self._ended:
                return
            self._ended = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within_s)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self) -> None:
        while not self._ended:
            # A task that raises an exit of the program stops the loop, too. The thread that waits for it has the error.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.run_until_complete(_end_others())


class CallersThread(Executor):
    """Makes submitted calls in the thread that is in ``serve``."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], BaseException | None] | None] = (
            queue.SimpleQueue()
        )

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call. If it raises an exit of the program, the future has Interrupted, and ``serve`` raises the exit."""
        future: Future[T] = Future()

        def job() -> BaseException | None:
            if not future.set_running_or_notify_cancel():
                return None
            ended = user_code.call(lambda: fn(*args, **kwargs))
            error = ended.error
            if error is None:
                future.set_result(ended.result())
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                future.set_exception(error)
            elif user_code.ends_program(error):
                future.set_exception(Interrupted(user_code.text_of(error)))
                return error
            else:
                future.set_exception(RuntimeError(f"The call raised {user_code.text_of(error)}"))
            return None

        self._jobs.put(job)
        return future

    def serve(self, done: Future[T], interrupted: Callable[[], None]) -> T:
        """Make the submitted calls until ``done``, and return its result.

        ``interrupted`` is called if an interrupt comes while this thread waits. It must bring about the end of
        ``done``; meanwhile this goes on with calls, and raises the interrupt at the end. Of an interrupt within a call
        the work on the loop learns by the call's error.
        """
        done.add_done_callback(lambda _: self._jobs.put(None))
        interrupt: BaseException | None = None
        try:
            while True:
                try:
                    job = self._jobs.get()
                    if job is None:
                        break
                    interrupt = job() or interrupt
                except KeyboardInterrupt as pressed:
                    interrupt = interrupt or pressed
                    interrupted()
            if interrupt is not None:
                raise interrupt
            if done.cancelled():
                _stay_at_exit()
            return done.result()
        finally:
            del done, interrupt, interrupted


def give_up(work: Awaitable[Any]) -> None:
    """Close work that never begins, so that Python does not warn of it."""
    if isinstance(work, Coroutine):
        work.close()


async def _awaited(work: Awaitable[T]) -> T:
    try:
        return await work
    finally:
        del work  # A future: the traceback of its error keeps this frame.


def _stay_at_exit() -> None:
    """At the exit of the program, keep a daemon thread here: the program ends it."""
    if _exits.is_set() and threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


async def _end_others() -> None:
    """Wait until every other task of the loop has ended: another thread may wait for its result. Close iterators, too.

    The calls of a closed client end by themselves, within a few iterations of the loop. Later ones are cancelled.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=ENDING_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=ENDING_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


@atexit.register
def _end_all() -> None:
    """End the bridges of this process before Python stops its daemon threads."""
    _exits.set()
    for bridge in tuple(_OPEN):
        if bridge.process_id == os.getpid():
            bridge.end(EXIT_S)
