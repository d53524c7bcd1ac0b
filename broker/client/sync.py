"""The client for code without asyncio: the same calls, blocking.

A ``SyncClient`` runs a ``Client`` on an event loop in a thread of its own, which the first call starts (see ``bridge``).
So many threads may use it at once, and their publishes share requests. It may be pickled: only its settings are
pickled, and the copy makes its own connections. It may also be used after a fork.

Its methods, and those of its transactions, are generated from those of ``Client`` and of
``TransactionPublisher``, with their signatures and their documentation::

    async def publish(topic, messages, ...) -> Published       def publish(...) -> Published
    async def tail(topic, start, ...) -> AsyncGenerator        def tail(...)    -> Generator
"""

from __future__ import annotations

import concurrent.futures
import os
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar, Unpack

from typing_extensions import override

from broker.client.aio import Client
from broker.client.bridge import Bridge, CallersThread
from broker.client.facade import blocking, described, made
from broker.client.handler import Handler
from broker.client.later import Counts
from broker.client.place_store import PlaceStore
from broker.client.range_read import Reading
from broker.client.retrier import OnTrouble, check_on_trouble
from broker.client.stage import Stage
from broker.client.subscriber import Subscriber
from broker.client.subscriber_factory import SubscriberFactory
from broker.client.subscription import SubscriberOptions
from broker.client.sync_subscriber import SyncCursorCalls, SyncDeadLetterCalls, SyncSubscriber
from broker.client.transaction_aware import AnyTransactionService, TransactionAware
from broker.client.transaction_buffer import BUFFER_BYTES_MAX
from broker.client.transaction_retry import ATTEMPTS_MAX, repeat_blocking
from broker.client.transaction_sync import (
    SyncTransaction,
    SyncTransactionPublisher,
    SyncTransactionService,
)
from broker.client.values import OnFull, Publishable, Published, SettingOptions, Settings, TopicName
from broker.model import Message, Snapshot

P = ParamSpec("P")
T = TypeVar("T")


class _Running(NamedTuple):
    """The bridge to the loop, and the client that runs there."""

    bridge: Bridge
    client: Client


async def _make(
    settings: Settings, tls: ssl.SSLContext | None, on_trouble: OnTrouble | None
) -> Client:
    return Client(settings=settings, tls=tls, on_trouble=on_trouble)


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T]],
) -> Callable[Concatenate[SyncClient, P], Generator[T]]:
    """Return the blocking form of a method of ``Client`` that yields items."""

    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        return self._iterate(made(call, method, self._client, *args, **kwargs))

    return described(call, method)


def _in_pages(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T]],
    pages: Callable[Concatenate[Client, P], AsyncGenerator[Sequence[T]]],
) -> Callable[Concatenate[SyncClient, P], Generator[T]]:
    """Return ``method`` as ``_iterating`` does, but cross threads only once for each of its ``pages``."""

    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        return _flat(self._iterate(made(call, pages, self._client, *args, **kwargs)))

    return described(call, method)


def _flat(pages: Generator[Sequence[T]]) -> Generator[T]:
    with closing(pages):
        for page in pages:
            yield from page


def _reading(
    method: Callable[Concatenate[Client, P], Reading],
) -> Callable[Concatenate[SyncClient, P], SyncReading]:
    """Return the blocking form of a method that returns a reading."""

    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> SyncReading:
        return SyncReading(self, made(call, method, self._client, *args, **kwargs))

    return described(call, method)


class SyncClient(SubscriberFactory[SyncSubscriber]):
    """Publishes to a broker and reads from it, blocking. Threads may share it.

    Args:
        url: the address of the broker, as for ``Client``; overrides that of ``settings``.
        settings: the settings of the client.
        tls: the TLS context for https addresses. It is not pickled: a copy trusts ``settings.ca_file``, or the
            certificates of the system.
        on_trouble: as for ``Client``; it is called in the client's own thread, and is not pickled, either.
        options: single settings by name; they override ``settings``.

    Methods, errors and guarantees are those of ``Client``.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        settings: Settings | None = None,
        tls: ssl.SSLContext | None = None,
        on_trouble: OnTrouble | None = None,
        **options: Unpack[SettingOptions],
    ) -> None:
        self.settings = (settings or Settings()).changed(url, options)
        check_on_trouble(on_trouble)
        self._tls = tls
        self._on_trouble = on_trouble
        self._start = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        self._counts = Counts()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _copy_of, (self.settings,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, flush_s: float = 5.0) -> None:
        """Close the client, as ``Client.close`` does. A second call does nothing."""
        running = self._running
        if running is not None:
            running.bridge.check_may_wait()
        with self._start:
            self._closed = True
            running, self._running = self._running, None
        if running is not None and running.bridge.process_id == os.getpid():
            running.bridge.wait(running.client.close(flush_s=flush_s))
            running.bridge.end()
            self._counts = running.client.later.counts

    create_topic = blocking(Client.create_topic)
    delete_topic = blocking(Client.delete_topic)
    topic = blocking(Client.topic)
    set_topic = blocking(Client.set_topic)
    purge = blocking(Client.purge)
    topics = blocking(Client.topics)
    namespaces = blocking(Client.namespaces)
    leader = blocking(Client.leader)

    publish = blocking(Client.publish)
    flush = blocking(Client.flush)
    store = blocking(Client.store)
    publish_stored = blocking(Client.publish_stored)
    rollback = blocking(Client.rollback)
    publish_stages = blocking(Client.publish_stages)

    poll = blocking(Client.poll)
    tail = _in_pages(Client.tail, Client.tail_pages)
    events = _iterating(Client.events)
    browse = blocking(Client.browse)
    blockers = blocking(Client.blockers)
    stats = blocking(Client.stats)
    lag = blocking(Client.lag)
    range = blocking(Client.range)
    read = _reading(Client.read)
    read_arrow = _iterating(Client.read_arrow)
    ask = blocking(Client.ask)

    def publish_later(
        self,
        topic: TopicName,
        message: Publishable,
        *,
        on_full: OnFull | None = None,
    ) -> concurrent.futures.Future[Published]:
        """Queue a message to be published in the background; blocks only while the queue is full.

        The future is done when the broker has acknowledged or refused the message. Before the program ends,
        close the client or call ``flush``: messages that are still queued then are lost. A done-callback of the
        future runs in the client's own thread: there this call is the only one that may be made, and does not block.
        """
        bridge, client = self._parts
        queued = client.publish_later(topic, message, on_full=on_full)
        if bridge.is_here:  # A done-callback, which must not wait.
            return bridge.submit(_settled(queued))
        return bridge.submit(bridge.wait(queued))

    @property
    def later_counts(self) -> Counts:
        """The counts of the messages given to ``publish_later``, by outcome; also after a close."""
        running = self._running
        if running is None or running.bridge.process_id != os.getpid():
            return self._counts
        return running.client.later.counts

    def transaction_publisher(
        self, pointer: int, snapshot: Snapshot | None = None
    ) -> SyncTransactionPublisher:
        """Return a publisher for another program's transaction, under its pointer; see ``Client.transaction_publisher``."""
        return SyncTransactionPublisher(self, pointer, snapshot)

    def transaction(  # noqa: PLR0913 - All by name.
        self,
        *,
        long: bool = False,
        timeout_s: float | None = None,
        label: str = "",
        name: str = "",
        aware: Sequence[TransactionAware] = (),
        service: AnyTransactionService | None = None,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> SyncTransaction:
        """Return a transaction for ``with``; see ``Client.transaction``.

        Participants and the service may be asynchronous or not. Plain ones run in the thread that runs the block.
        """
        return SyncTransaction(
            self,
            aware,
            service,
            long=long,
            timeout_s=timeout_s,
            label=label,
            name=name,
            buffer_bytes_max=buffer_bytes_max,
        )

    def in_transaction(
        self,
        work: Callable[[SyncTransaction], T],
        *,
        attempts_max: int = ATTEMPTS_MAX,
        begin: Callable[[], SyncTransaction] | None = None,
    ) -> T:
        """Run ``work`` in a transaction, and again after a conflict; see ``Client.in_transaction``."""
        return repeat_blocking(begin or self.transaction, work, attempts_max)

    @override
    def _subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Handler,
        place: PlaceStore | None,
        options: SubscriberOptions,
    ) -> SyncSubscriber:
        caller = CallersThread()

        async def make() -> Subscriber:
            return self._client._subscriber(topic, name, handler, place, options, caller)  # noqa: SLF001 - The same package.

        return SyncSubscriber(self._wait(make()), caller, self._bridge)

    @property
    def cursors(self) -> SyncCursorCalls:
        """The calls of named cursors; see ``Client.cursors``."""
        return SyncCursorCalls(self._client.cursors, self._wait)

    @property
    def dead_letters(self) -> SyncDeadLetterCalls:
        """The calls of dead letters; see ``Client.dead_letters``."""
        return SyncDeadLetterCalls(self._client.dead_letters, self._wait)

    @property
    def transactions(self) -> SyncTransactionService:
        """The calls of the broker's transaction service; see ``Client.transactions``."""
        return SyncTransactionService(self)

    def stage(self, topic: TopicName) -> SyncStage:
        """Return a stage of a topic, which begins with ``with``; see ``Client.stage``."""
        return SyncStage(self, topic)

    # --- Inside -----------------------------------------------------------------------------------

    @property
    def _parts(self) -> _Running:
        """The bridge and its client, made on first use. A forked child process makes its own."""
        running = self._running
        if running is not None and running.bridge.process_id == os.getpid():
            return running
        with self._start:
            if self._closed:
                raise RuntimeError("This client is closed.")
            running = self._running
            if running is None or running.bridge.process_id != os.getpid():
                running = self._running = self._made()
            return running

    def _made(self) -> _Running:
        bridge = Bridge()
        try:
            client = bridge.wait(_make(self.settings, self._tls, self._on_trouble))
        except BaseException:  # For example, an address is not valid.
            bridge.end()
            raise
        return _Running(bridge, client)

    @property
    def _bridge(self) -> Bridge:
        return self._parts.bridge

    @property
    def _client(self) -> Client:
        return self._parts.client

    def _wait(self, work: Awaitable[T]) -> T:
        """Run a call on the loop and wait for it; an interrupt of the wait cancels it."""
        return self._bridge.wait(work)

    def _iterate(self, source: AsyncGenerator[T]) -> Generator[T]:
        bridge = self._bridge
        try:
            while (item := bridge.wait(anext(source, None))) is not None:
                yield item
        except GeneratorExit:  # After any other error, raised by the source, the source has ended.
            bridge.ask(
                source.aclose()
            )  # Python may collect this iterator in any thread, so this must not wait.
            raise


class SyncStage:
    """A stage of one topic, which begins with ``with``; see ``Client.stage``."""

    def __init__(self, client: SyncClient, topic: TopicName) -> None:
        self._client = client._client.stage(topic)  # noqa: SLF001 - The same module.
        self._wait = client._wait  # noqa: SLF001

    def __enter__(self) -> Self:
        self._wait(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the stage as it is."""

    @property
    def id(self) -> str:
        """The number that the broker gave the stage."""
        return self._client.id

    store = blocking(Stage.store)


class SyncReading:
    """A range: iterate over it, or convert it into a table; see ``broker.client.range_read.Reading`` for its methods."""

    def __init__(self, client: SyncClient, reading: Reading) -> None:
        self._client = reading
        self._wait = client._wait  # noqa: SLF001 - The same module.
        self._iterate = client._iterate  # noqa: SLF001

    def __iter__(self) -> Generator[Message]:
        for page in self.pages():
            yield from page

    def pages(self) -> Generator[list[Message]]:
        """Yield the messages in the lists in which they arrive, none of them empty."""
        return self._iterate(self._client.pages())

    to_arrow = blocking(Reading.to_arrow)
    to_pandas = blocking(Reading.to_pandas)
    to_polars = blocking(Reading.to_polars)


async def _settled(queued: Awaitable[Awaitable[T]]) -> T:
    return await (await queued)


def _copy_of(settings: Settings) -> SyncClient:
    return SyncClient(settings=settings)
