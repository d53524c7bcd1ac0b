"""The client for code without asyncio: the same calls, blocking.

A ``SyncClient`` runs a ``Client`` on an event loop in a thread of its own, started by the first call.
So it may be used by many threads at once, whose publishes then travel together; it may be pickled
(what travels is its settings; the copy connects by itself), and used after a fork.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import ssl
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from typing_extensions import override

from broker.client.aio import Client
from broker.client.later import Counts, OnFull
from broker.client.subscriber import TailOptions
from broker.client.values import (
    BrowsePage,
    Payload,
    Published,
    Settings,
    Start,
    Stats,
    TopicInfo,
    TopicName,
)
from broker.model import Message, MessageId, Snapshot

T = TypeVar("T")


class _LoopThread:
    """An event loop in a daemon thread, and the client that lives on it."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None) -> None:
        self.process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="broker-client", daemon=True
        )
        self._thread.start()
        self.client = self.submit(_make(settings, tls)).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _make(settings: Settings, tls: ssl.SSLContext | None) -> Client:
    return Client(settings=settings, tls=tls)


class SyncClient:
    """Publishes to a broker and reads from it, blocking; safe to share between threads.

    Args:
        url: where the broker listens; overrides that of ``settings``.
        settings: how the client behaves.
        tls: the TLS context for https addresses. It is not pickled along: a copy elsewhere uses the
            system's trust.
        options: single settings by name, over ``settings``.

    Errors and guarantees are those of ``Client``, whose methods these are.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        tls: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        if url is not None:
            options["url"] = url
        self.settings = replace(settings or Settings(), **options)
        self._tls = tls
        self._start = threading.Lock()
        self._running: _LoopThread | None = None
        self._closed = False

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _copy_of, (self.settings,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, *, flush_s: float = 5.0) -> None:
        """Close the client, as ``Client.close`` does. Calling it again does nothing."""
        with self._start:
            self._closed = True
            running, self._running = self._running, None
        if running is not None and running.process_id == os.getpid():
            running.submit(running.client.close(flush_s=flush_s)).result()
            running.stop()

    # --- Topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: TopicName,
        properties: Mapping[str, str] | None = None,
        *,
        ttl_s: int | None = None,
        if_exists: Literal["raise", "keep"] = "raise",
    ) -> None:
        """Create a topic."""
        create = self._client.create_topic
        self._wait(create(topic, properties, ttl_s=ttl_s, if_exists=if_exists))

    def delete_topic(self, topic: TopicName) -> None:
        """Delete a topic and all its messages."""
        self._wait(self._client.delete_topic(topic))

    def topic(self, topic: TopicName) -> TopicInfo:
        """Return a topic's properties and generation."""
        return self._wait(self._client.topic(topic))

    def set_topic(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Replace all properties of a topic."""
        self._wait(self._client.set_topic(topic, properties))

    def topics(self, namespace: str | None = None) -> list[str]:
        """Return the names of the topics of a namespace."""
        return self._wait(self._client.topics(namespace))

    # --- Publishing -------------------------------------------------------------------------------

    def publish(
        self,
        topic: TopicName,
        messages: Payload | Sequence[Payload],
        *,
        pointer: int | None = None,
        ttl_s: int | None = None,
        key: str | None = None,
    ) -> Published:
        """Publish one message, or several in one request."""
        return self._wait(
            self._client.publish(topic, messages, pointer=pointer, ttl_s=ttl_s, key=key)
        )

    def publish_later(
        self,
        topic: TopicName,
        message: Payload,
        *,
        on_full: OnFull | None = None,
    ) -> concurrent.futures.Future[Published]:
        """Queue a message to be published in the background; blocks only while the queue is full.

        The future is done when the broker has acknowledged or refused the message. Close the client,
        or ``flush``, before the program ends: what is still queued then is lost.
        """
        answer = self._wait(self._client.publish_later(topic, message, on_full=on_full))
        return self._thread.submit(_outcome(answer))

    @property
    def later_counts(self) -> Counts:
        """What became of the messages given to ``publish_later``."""
        return self._client.later.counts

    def flush(self) -> None:
        """Wait until everything given to ``publish_later`` so far is settled."""
        self._wait(self._client.flush())

    def store(
        self,
        topic: TopicName,
        messages: Payload | Sequence[Payload],
        *,
        pointer: int,
        ttl_s: int | None = None,
        key: str | None = None,
    ) -> None:
        """Store messages under a write pointer, for ``publish_stored``."""
        self._wait(self._client.store(topic, messages, pointer=pointer, ttl_s=ttl_s, key=key))

    def publish_stored(
        self, topic: TopicName, *, pointer: int, key: str | None = None
    ) -> Published:
        """Publish everything that was stored under a write pointer."""
        return self._wait(self._client.publish_stored(topic, pointer=pointer, key=key))

    def rollback(self, topic: TopicName, published: Published) -> None:
        """Undo a transactional publish."""
        self._wait(self._client.rollback(topic, published))

    # --- Reading ----------------------------------------------------------------------------------

    def poll(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        snapshot: Snapshot | None = None,
        wait_s: float | None = None,
    ) -> list[Message]:
        """Return the messages from a place on."""
        return self._wait(
            self._client.poll(
                topic,
                start,
                inclusive=inclusive,
                limit=limit,
                snapshot=snapshot,
                wait_s=wait_s,
            )
        )

    def tail(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        snapshot: Snapshot | None = None,
        options: TailOptions | None = None,
    ) -> Iterator[Message]:
        """Return all messages from a place on, and new ones as they come; close it to end it."""
        pages = self._client.tail_pages(
            topic, start, inclusive=inclusive, snapshot=snapshot, options=options
        )
        with closing(self._iterate(pages)) as received:
            for page in received:
                yield from page

    def events(self, topic: TopicName, start: MessageId | str | None = None) -> Iterator[Message]:
        """Return messages from the broker's stream of server-sent events."""
        return self._iterate(self._client.events(topic, start))

    def browse(  # noqa: PLR0913 - These are the parameters of the endpoint.
        self,
        topic: TopicName,
        *,
        start: Start | datetime = None,
        stop: Start | datetime = None,
        limit: int | None = None,
        descending: bool = False,
        full: bool = False,
        snapshot: Snapshot | None = None,
    ) -> BrowsePage:
        """Look at messages without consuming."""
        return self._wait(
            self._client.browse(
                topic,
                start=start,
                stop=stop,
                limit=limit,
                descending=descending,
                full=full,
                snapshot=snapshot,
            )
        )

    def stats(self, topic: TopicName) -> Stats:
        """Return a topic's figures."""
        return self._wait(self._client.stats(topic))

    # --- Inside -----------------------------------------------------------------------------------

    @property
    def _thread(self) -> _LoopThread:
        """The loop thread, started on first use; a forked child starts its own."""
        running = self._running
        if running is not None and running.process_id == os.getpid():
            return running
        with self._start:
            if self._closed:
                raise RuntimeError("This client is closed.")
            if self._running is None or self._running.process_id != os.getpid():
                self._running = _LoopThread(self.settings, self._tls)
            return self._running

    @property
    def _client(self) -> Client:
        return self._thread.client

    def _wait(self, work: Awaitable[T]) -> T:
        """Run a call on the loop and wait for it; an interrupt of the waiting cancels it."""
        future = self._thread.submit(_outcome(work))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _iterate(self, source: AsyncGenerator[T]) -> Generator[T]:
        try:
            while (item := self._wait(anext(source, None))) is not None:
                yield item
        except GeneratorExit:  # Other errors come out of the source, which has ended by them.
            if not self._closed:
                self._wait(source.aclose())
            raise


async def _outcome(work: Awaitable[T]) -> T:
    return await work


def _copy_of(settings: Settings) -> SyncClient:
    return SyncClient(settings=settings)
