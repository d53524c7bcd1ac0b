"""A store of the caller that keeps a subscriber's place, and changes it together with the handler's own writes.

Its errors say nothing about a message. So no error of it counts as a try: it is asked again without a time limit. After
an error the outcome of its last write is unknown. Then the subscriber loads the place again, and acts by it::

    behind the messages in work     the write was done: go on
    before them                     it was not: handle them again
    elsewhere                       another subscriber moved it: begin again as a standby
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, runtime_checkable

from broker import user_code
from broker.client.handler import Calling, FailedCall, Work
from broker.client.place_keepers import CursorLost
from broker.client.positions import generation_in, id_of
from broker.client.values import IdPlace
from broker.errors import CursorMoved, TopicRecreated
from broker.escapes import escaping_logger
from broker.model import MessageId, TopicId

log: Final = escaping_logger("broker.client.subscriber")


@runtime_checkable
class PlaceStore(Protocol):
    """A store of the caller that keeps a subscriber's place, and changes it together with the handler's own writes.

    Each method may be asynchronous or not. A method that is not asynchronous runs in the handler's thread. After any
    error of theirs the subscriber calls ``load``, and then ``work`` again, without a time limit.
    """

    def load(self) -> IdPlace | Awaitable[IdPlace | None] | None:
        """Return the id of the last message that was handled; None if no message was handled.

        If it returns a ``Place`` with a generation, the subscriber refuses the place of another generation.
        """

    def work(self, after: MessageId) -> Work:
        """Return a context manager around one call of the handler, such as a transaction of a database.

        Its value is the second argument of the handler. If the context ends without an error, it stores ``after`` as
        the place, together with the handler's writes. If it ends with an error, it stores neither. If it finds that
        another program moved the place, it should raise CursorMoved; then the subscriber loads the place again. If the
        database refuses the handler's own writes only here, it should raise HandlerFailed from that error: a failed try.
        """


@runtime_checkable
class TopicPlaceStore(PlaceStore, Protocol):
    """A store that keeps the topic and its generation beside the place."""

    def begin(self, topic: TopicId, generation: int) -> Awaitable[None] | None:
        """Learn the topic to which the place belongs, before each first ``load`` of a process or after a takeover."""


class OwnPlace:
    """The place in a store of the caller."""

    def __init__(
        self, store: PlaceStore, calling: Calling, pause: Callable[[int], Awaitable[None]]
    ) -> None:
        """``pause`` waits after so many failures in a row. Raises TypeError if ``store`` is no PlaceStore."""
        if not isinstance(store, PlaceStore):
            raise TypeError(f"place has the methods load and work; {type(store).__name__} has not.")
        self._store = store
        self._calling = calling
        self._pause = pause
        self._topic: TopicId | None = None
        self._generation = 0
        self._loaded: MessageId | None = None

    async def begin(self, topic: TopicId, generation: int) -> MessageId | None:
        """Return the place in a topic of this generation. Raises TopicRecreated if it is in another one."""
        self._topic, self._generation = topic, generation
        if isinstance(self._store, TopicPlaceStore):
            await self._asked(self._store.begin, topic, generation)
        return await self._load()

    async def _asked(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a method of the store; call it again after any error. Raises Stopped."""
        failures = 0
        while (ended := await self._calling.run(method, *arguments)).error is not None:
            _check(ended.error)
            failures += 1
            _tell("loaded", ended.error, failures)
            del ended
            await self._pause(failures)
        return ended.value

    async def _load(self) -> MessageId | None:
        """Return the place. Raises Stopped; BadRequest or TypeError if the store returns anything else."""
        place = await self._asked(self._store.load)
        if isinstance(place, bytearray | memoryview):  # So some drivers return bytes.
            place = bytes(place)
        self._loaded = None if place is None else id_of(place, "the place of the store")
        generation = generation_in(place)
        if generation not in {None, self._generation}:
            raise TopicRecreated.between(self._topic, generation or 0, self._generation)
        return self._loaded

    def work(self, after: MessageId) -> Callable[[], Work]:
        """Return the factory of the store's context."""
        return lambda: self._store.work(after)

    def moved(self, after: MessageId) -> None:
        """Record that the store has moved the place."""
        self._loaded = after

    async def is_moved(self, failure: FailedCall, after: MessageId, failures: int) -> bool:
        """Return whether the store has moved the place behind ``after`` in spite of an error.

        Raises:
            CursorLost: it is at another place than this subscriber has left it.
            Stopped: the subscriber must stop.
        """
        _check(failure.error)
        if not isinstance(failure.error, CursorMoved):
            _tell("stored", failure.error, failures)
            await self._pause(failures)
        before = self._loaded
        now = await self._load()
        if now == after:
            return True
        if now != before or isinstance(failure.error, CursorMoved):
            raise CursorLost("The caller's store has another place.")
        return False


def _check(error: BaseException) -> None:
    """Raise an error that ends the program."""
    if user_code.ends_program(error):
        raise error


def _tell(done: str, error: BaseException, failures: int) -> None:
    log.warning(
        "the place can't be %s, try %d: %s",
        done,
        failures,
        user_code.text_of(error),
        exc_info=user_code.traceback_of(error),
    )
