"""``subscriber`` of both clients, with the types of handlers.

    batch_messages_max   place    the handler takes
    None                 None     a message
    None                 given    a message, and the value of the place's ``work``
    a number             None     a list of messages
    a number             given    a list of messages, and the value of the place's ``work``

With ``options`` a type checker does not know the handler's arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from broker.client import typed_options
from broker.client.place_store import PlaceStore
from broker.client.subscription import SubscriberOptions
from broker.client.values import Start, TopicName
from broker.model import Message

S = TypeVar("S")


class SingleOptions(TypedDict, total=False):
    """Single options by name, for calls; ``SubscriberOptions`` describes them."""

    start: Start | Literal["now"]
    page_messages_max: int
    place_interval_s: float
    place_messages_max: int
    tries_max: int | None
    retry_delay_min_s: float
    retry_delay_max_s: float
    handler_timeout_s: float | None
    dead_letters: TopicName | None
    create_dead_letters: bool
    takeover_s: float
    transactional: bool
    wait_s: float


class SubscriberFactory(Generic[S]):
    """Makes subscribers: ``Subscriber`` for asyncio, or ``SyncSubscriber``."""

    @overload
    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[[Message], object],
        *,
        place: None = None,
        batch_messages_max: None = None,
        **single: Unpack[SingleOptions],
    ) -> S: ...

    @overload
    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[[list[Message]], object],
        *,
        place: None = None,
        batch_messages_max: int,
        **single: Unpack[SingleOptions],
    ) -> S: ...

    @overload
    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[[Message, Any], object],
        *,
        place: PlaceStore,
        batch_messages_max: None = None,
        **single: Unpack[SingleOptions],
    ) -> S: ...

    @overload
    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[[list[Message], Any], object],
        *,
        place: PlaceStore,
        batch_messages_max: int,
        **single: Unpack[SingleOptions],
    ) -> S: ...

    @overload
    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[..., object],
        *,
        place: PlaceStore | None = None,
        options: SubscriberOptions,
        batch_messages_max: int | None = None,
        **single: Unpack[SingleOptions],
    ) -> S: ...

    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[..., object],
        *,
        place: PlaceStore | None = None,
        options: SubscriberOptions | None = None,
        **single: Any,
    ) -> S:
        """Return a subscriber. Its ``run`` passes each message of a topic to ``handler`` (see ``broker.client.subscriber``).

        Args:
            topic: the topic.
            name: the name of its place, 1 to 128 letters, digits and any of ``_ - .``. Of several subscribers with
                one name one works, and the others are standbys.
            handler: a function, asynchronous or not. It is called with one message, or with a list if the option
                ``batch_messages_max`` is set. A message is handled when the handler returns. If the handler raises
                an error, it is called again. A handler that is not asynchronous runs in one thread: that of ``run``
                for a ``SyncClient``, else one of the subscriber.
            place: a store of the caller that keeps the place, in the handler's own transaction; None: a named cursor
                of the broker.
            options: the options of the subscriber.
            **single: single options by name; they override ``options``.

        Raises:
            BadName: the name is not valid.
            TypeError, ValueError: an option does not exist, or its value is not valid.
        """
        wanted = typed_options.changed(options or SubscriberOptions(), single)
        return self._subscriber(topic, name, handler, place, wanted)

    def _subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Callable[..., object],
        place: PlaceStore | None,
        options: SubscriberOptions,
    ) -> S:
        raise NotImplementedError


SubscriberFactory.subscriber.__qualname__ = (
    "subscriber"  # Errors name no class that the caller does not use.
)
