"""The client for asyncio.

::

    async with Client("http://127.0.0.1:8080") as client:
        await client.create_topic("audit/logins")
        await client.publish("audit/logins", b"alice")
        async for message in client.tail("audit/logins"):
            print(message.id.hex(), message.payload)

Guarantees:

* A publish that returns is stored and synced. If a publish raises, ``error.outcome`` says whether it was
  certainly not stored (*refused*) or may have been stored (*unknown*).
* The client retries temporary refusals until ``deadline_s``. A request that may have been done already is
  retried only if it carries an idempotency key: one from the caller (``idempotency_key=``), or one that
  the client makes (``idempotent=True``). By default there is no key: a key costs the broker a row for each
  request.
* Publishes of one caller, each awaited before the next, keep their order. Concurrent publishes keep the
  order of their calls, unless one of them is retried or ``connections_per_topic`` is more than one.
* A reader resumes after the last message that it has seen, also after a lost connection.
* In a cluster the client sends requests directly to the leaders of the topics, see ``node_directory``. With the
  addresses of several nodes, the client also works while one of them is down. It keeps the order of
  publishes while leadership moves, see ``track``.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, Self, TypeVar, Unpack

from broker.client import admin, protocol
from broker.client.calls import Calls
from broker.client.client_request import ClientRequest, read_as, request_for
from broker.client.later import Later
from broker.client.letter_calls import DeadLetterCalls
from broker.client.node_directory import Leader
from broker.client.properties import settable
from broker.client.publish_request import SINGLE, parts_of, payload_bytes, request_of
from broker.client.reader import Reader
from broker.client.retrier import OnTrouble, Retrier
from broker.client.room import Room
from broker.client.stage import Stage
from broker.client.topic_publisher import TopicPublisher
from broker.client.transaction_aware import AnyTransactionService, TransactionAware
from broker.client.transaction_block import Transaction
from broker.client.transaction_buffer import BUFFER_BYTES_MAX, BufferedPublisher
from broker.client.transaction_context import TransactionContext
from broker.client.transaction_publisher import TransactionPublisher
from broker.client.transaction_retry import ATTEMPTS_MAX, repeat
from broker.client.transactions import TransactionService
from broker.client.transport import HttpTransport, Transport
from broker.client.values import (
    NewMessage,
    OnFull,
    Payload,
    Producer,
    Publishable,
    Published,
    SettingOptions,
    Settings,
    TopicInfo,
    TopicName,
)
from broker.errors import TopicExists
from broker.model import NO_HEADERS, PublishRequest, Snapshot, TopicId
from broker.wire.topics import GENERATION

T = TypeVar("T")


class Client(Reader):
    """Publishes to a broker and reads from it. Use a client in one event loop at a time.

    Args:
        url: the address of the broker, or the addresses of several nodes of a cluster; overrides
            that of ``settings``.
        settings: the settings of the client.
        tls: the TLS context for https addresses. By default the client trusts ``settings.ca_file``, or the
            certificates of the system.
        transport: sends the requests; for tests.
        on_trouble: is called with the reason while the client retries a call (see ``Trouble``).
        options: single settings by name; they override ``settings``.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        settings: Settings | None = None,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
        on_trouble: OnTrouble | None = None,
        **options: Unpack[SettingOptions],
    ) -> None:
        wanted = (settings or Settings()).changed(url, options)
        self._transport = transport or HttpTransport(wanted, tls)
        retrier = Retrier(wanted, on_trouble=on_trouble)
        self._room = Room(wanted.later_messages_max, wanted.later_bytes_max)
        super().__init__(wanted, Calls(self._transport, retrier, self._room), retrier)
        self._publishers: dict[TopicName, TopicPublisher] = {}
        self._later_publishers: dict[TopicId, TopicPublisher] = {}
        self._later: Later | None = None
        self._name_epochs: dict[str, str] = {}
        retrier.in_new_loop = self._forget_loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, flush_s: float = 5.0) -> None:
        """Close the client.

        Messages given to ``publish_later`` have ``flush_s`` seconds to be acknowledged. Other calls in progress
        end at once: unsent ones as refused, sent ones as unknown.
        """
        self._retrier.loop()
        self._room.close()
        if self._later is not None:
            await self._later.end(flush_s)
        self._retrier.close()
        publishers = {*self._publishers.values(), *self._later_publishers.values()}
        for publisher in publishers:
            publisher.close()
        # Close the transport first: it wakes publishers that wait for a connection.
        await self._transport.close()
        for publisher in publishers:
            await publisher.finished()

    # --- Topics -----------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: TopicName,
        properties: Mapping[str, str] | None = None,
        *,
        ttl_s: int | None = None,
        if_exists: Literal["raise", "keep"] = "raise",
    ) -> None:
        """Create a topic.

        Args:
            topic: its name.
            properties: its properties, as strings; the broker adds its defaults.
            ttl_s: the property ``ttl``: how many seconds a message lives.
            if_exists: with ``"keep"``, an existing topic is no error, and keeps its own properties.

        Raises:
            TopicExists: there is one already, and ``if_exists`` is ``"raise"``.
            BadRequest: ``generation`` is among the properties.
        """
        wanted = settable(properties or {})
        if ttl_s is not None:
            wanted["ttl"] = str(ttl_s)
        try:
            await self._calls.write(protocol.create_topic(self._topic(topic), wanted))
        except TopicExists:
            if if_exists == "raise":
                raise

    async def delete_topic(self, topic: TopicName) -> None:
        """Delete a topic and all its messages. Raises TopicNotFound."""
        await self._calls.write(protocol.delete_topic(self._topic(topic)))

    async def topic(self, topic: TopicName) -> TopicInfo:
        """Return a topic's properties and generation. Raises TopicNotFound."""
        identifier = self._topic(topic)
        return await self._calls.ask(
            protocol.show_topic(identifier), partial(protocol.topic_info, identifier)
        )

    async def set_topic(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Replace all properties of a topic. A property that is left out returns to the broker's default.

        The properties that ``topic`` returned can be changed and given here. They contain ``generation``; in this
        case the client first reads the topic to check it.

        Raises:
            TopicNotFound: there is no such topic.
            BadRequest: ``generation`` is among them, and is not the topic's present one.
        """
        generation = (await self.topic(topic)).generation if GENERATION in properties else None
        wanted = settable(properties, generation)
        await self._calls.write(protocol.set_properties(self._topic(topic), wanted))

    async def purge(self, topic: TopicName, before: datetime | int | Literal["now"]) -> int:
        """Remove all messages published before a moment, for good: from now on no node shows them.

        Args:
            topic: the topic.
            before: a datetime with a time zone, or ms since 1970, not in the future by the broker's clock; or
                ``"now"`` for all stored messages. A moment below that of an earlier purge changes nothing.

        Returns:
            The moment, in ms: no message from before it is left. It is at most 1 ms after the last message.

        Raises:
            TopicNotFound: there is no such topic.
            BadRequest: the moment lies in the future, or is not a moment.
        """
        request = protocol.purge(self._topic(topic), before)
        return await self._calls.ask(request, protocol.purged_ms)

    async def topics(self, namespace: str | None = None) -> list[str]:
        """Return the names of the topics of a namespace, in the broker's order."""
        request = protocol.list_topics(namespace or self.settings.namespace)
        return await self._calls.ask(request, protocol.names)

    async def namespaces(self) -> list[str]:
        """Return the names of the namespaces that have topics, sorted.

        Raises:
            NotFound: the server is another kind of broker, which has no such list.
        """
        return await self._calls.ask(request_for("namespaces"), protocol.names)

    async def leader(self, topic: TopicName) -> Leader:
        """Return the leader of a topic; a standalone broker leads all topics.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return await self._calls.ask(admin.leader(self._topic(topic)), protocol.named_leader)

    # --- Publishing -------------------------------------------------------------------------------

    async def publish(  # noqa: PLR0913 - All by name.
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        pointer: int | None = None,
        ttl_s: int | None = None,
        idempotency_key: str | None = None,
        producer: Producer | None = None,
        coalesce: bool | None = None,
        generation: int | None = None,
    ) -> Published:
        """Publish one message, or several as one request that is stored whole or not at all.

        Single messages from concurrent calls share a request. A message with a pointer, a lifetime
        or an idempotency key of its own, and a sequence of messages, has a request of its own.

        Args:
            topic: the topic.
            messages: bytes, text or ``NewMessage``, one or a sequence.
            key: the key of each of these messages that has none of its own.
            headers: the headers, by name, of each of these messages that has none of its own.
            pointer: the write pointer of the transaction that the messages belong to.
            ttl_s: how many seconds these messages live, if shorter than the topic's.
            idempotency_key: within the broker's window the broker stores only one publish with this key.
            producer: an id and a number that is higher than in the producer's previous publish. If the number is not
                above the last one that the topic has of this producer, nothing is stored and the answer is
                ``replayed``. The topic remembers the number for its ttl plus 7 days without a publish. Await each
                publish before the next.
            coalesce: whether a single message may share a request with others; by default the client's
                setting.
            generation: the generation of the topic to publish to, from ``topic`` or an earlier publish; None: the present
                one.

        Returns:
            The acknowledgement. With a pointer it can be given to ``rollback``.

        Raises:
            AlreadyPublished: the same key or number was published with another pointer, or was rolled back; nothing was
                stored now.
            TopicRecreated: the topic has another generation than the given one; nothing was stored.
            BadRequest: raised before sending: the idempotency key is not 1 to 255 visible ASCII characters, or
                there are too many headers, or they are too large.
            BrokerError: the error of the answer; ``outcome`` says whether the messages may be stored anyway.
        """
        if isinstance(messages, SINGLE):
            together = self.settings.coalesce if coalesce is None else coalesce
            if (
                together
                and pointer is None
                and ttl_s is None
                and idempotency_key is None
                and producer is None
                and generation is None
            ):
                if key is None and not headers and not isinstance(messages, NewMessage):
                    return await self._publish_together(topic, payload_bytes(messages))
                parts = parts_of(messages, key=key, headers=headers)
                if parts.ttl_s is None:
                    return await self._publish_together(topic, parts.payload, parts.attributes)
        wanted = request_of(messages, pointer=pointer, key=key, headers=headers)
        once = self._key(idempotency_key) if producer is None else idempotency_key
        make = partial(
            protocol.publish,
            self._topic(topic),
            ttl_s=ttl_s,
            key=once,
            producer=producer,
            generation=generation,
        )
        return protocol.published(await self._calls.write_messages(wanted, make))

    async def _publish_together(
        self, topic: TopicName, payload: bytes, attributes: bytes = b""
    ) -> Published:
        """Publish one message in a request that it may share with others."""
        ends, size = self._retrier.ends(), len(payload) + len(attributes)
        publisher = self._publishers.get(topic) or self._publisher(topic)
        if self._room.take(1, size):
            return await publisher.add(payload, attributes, ends)
        add = partial(publisher.add, payload, attributes, ends)
        answer = await self._room.wait(1, size, ends, add, lambda answer: answer.cancel())
        try:
            return await answer
        finally:
            del answer  # The error's traceback keeps this frame.

    async def publish_later(
        self,
        topic: TopicName,
        message: Publishable,
        *,
        on_full: OnFull | None = None,
    ) -> asyncio.Future[Published]:
        """Queue a message to be published in the background (see ``later``).

        Returns:
            A future with the acknowledgement. The caller may ignore it; ``later.counts`` counts every outcome.

        Raises:
            Overloaded: the queue is full, and ``on_full`` is ``"raise"``; or there was no room until the deadline.
        """
        return await self.later.put(self._topic(topic), parts_of(message), on_full)

    @property
    def later(self) -> Later:
        """The queue of ``publish_later``: its counts, its bounds, ``flush``."""
        if self._later is None:
            self._later = Later(
                self._later_publisher, self._room, self._retrier.ends, self.settings.later_on_full
            )
        return self._later

    def _later_publisher(self, topic: TopicId) -> TopicPublisher:
        if topic not in self._later_publishers:
            ordered = replace(self.settings, requests_in_flight_max=1, connections_per_topic=1)
            self._later_publishers[topic] = self._new_publisher(topic, ordered)
        return self._later_publishers[topic]

    async def flush(self) -> None:
        """Wait until every message given to ``publish_later`` so far is acknowledged or given up."""
        if self._later is not None:
            await self._later.flush()

    async def store(  # noqa: PLR0913 - All by name.
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        pointer: int,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
        idempotency_key: str | None = None,
        generation: int | None = None,
    ) -> int | None:
        """Store messages under a write pointer; ``publish_stored`` publishes them all at once.

        ``key`` and ``headers`` are as for ``publish``.

        Returns:
            The generation of the topic in which they are; give it to the next ``store`` and to ``publish_stored``.
            None: the broker does not say it.

        Raises:
            PayloadsSealed: they were published already.
            TopicRecreated: the topic has another generation than the given one.
        """
        wanted = request_of(messages, pointer=pointer, key=key, headers=headers)
        once = self._key(idempotency_key)
        make = partial(
            protocol.store, self._topic(topic), ttl_s=ttl_s, key=once, generation=generation
        )
        return protocol.generation((await self._calls.write_messages(wanted, make)).headers)

    async def publish_stored(
        self,
        topic: TopicName,
        *,
        pointer: int,
        idempotency_key: str | None = None,
        generation: int | None = None,
    ) -> Published:
        """Publish, by one reference, all messages that were stored under a write pointer.

        Raises:
            TopicRecreated: the topic has another generation than the given one, in which ``store`` put the messages.
        """
        wanted, once = PublishRequest(pointer, []), self._key(idempotency_key)
        request = protocol.publish(self._topic(topic), wanted, key=once, generation=generation)
        return await self._calls.ask(request, protocol.published)

    def stage(self, topic: TopicName) -> Stage:
        """Return a stage of a topic. One writer stores messages in it; no consumer sees them yet.

        ::

            async with client.stage("audit/logins") as stage:
                await stage.store([b"alice", b"bob"])
            await client.publish_stages("audit/logins", [stage.id])
        """
        return Stage(self._calls, self._topic(topic))

    async def publish_stages(
        self,
        topic: TopicName,
        stages: Sequence[str],
        *,
        pointer: int | None = None,
        ttl_s: int | None = None,
        producer: Producer | None = None,
    ) -> Published:
        """Publish the messages of stages, in the order of the list, all at once. Repeating the call is a no-op.

        Args:
            topic: the topic of the stages.
            stages: their ids, each once, at most 5,000.
            pointer: the write pointer of the transaction that the messages belong to.
            ttl_s: how many seconds these messages live, if shorter than the topic's.
            producer: as for ``publish``.

        Raises:
            PayloadsSealed: a stage is too old, or was published in another list; nothing was published now.
            AlreadyPublished: they were published with another pointer, or rolled back; nothing was published now.
        """
        request = protocol.publish_stages(
            self._topic(topic), stages, pointer=pointer, ttl_s=ttl_s, producer=producer
        )
        return await self._calls.ask(request, protocol.published)

    async def rollback(self, topic: TopicName, published: Published) -> None:
        """Undo a transactional publish: from now on, consumers in transactions skip its messages.

        Raises:
            ValueError: the publish was not transactional.
        """
        if published.rollback is None:
            raise ValueError("Only a publish with a write pointer can be rolled back.")
        await self._calls.write(protocol.rollback(self._topic(topic), published.rollback))

    def transaction_publisher(
        self, pointer: int, snapshot: Snapshot | None = None
    ) -> TransactionPublisher:
        """Return a publisher for a transaction that another program runs, under its write pointer.

        The publisher remembers its publishes, to undo them if need be; ``rollback`` says how that transaction may end.
        """
        return TransactionPublisher(self, pointer, snapshot)

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
    ) -> Transaction:
        """Return a transaction. Its block begins it, and commits it at the end; an exception rolls it back.

        ::

            async with client.transaction() as tx:
                await tx.publish("audit/logins", b"alice")

        Args:
            long: whether it may take long, for example to load many messages.
            timeout_s: after how many seconds it becomes invalid. By default the service decides: 30 seconds, or
                a day for a long transaction.
            label: a text that ``broker tx list`` shows.
            name: the name under which the program runs its transactions, one at a time. The start under a name makes
                the transaction invalid that is in progress under it, so a restarted program ends what it left open,
                and consumers do not wait for the time-out. An older client that still uses the name is fenced.
            aware: the participants other than the publisher, in the order of their calls.
            service: the transaction service, if it is not the broker's.
            buffer_bytes_max: how many bytes of messages it holds in memory; it stores further messages in the broker.

        Raises:
            TransactionConflict, TransactionNotInProgress: at the end of the block: it is not committed.
            OutcomeUnknown: a publish, or the commit, has an unknown outcome; ``tx.state`` has the details.
            TransactionFenced: at the beginning of the block: another client uses the name since.
            BrokerError: at the beginning of the block: no transaction could be started.
        """
        publisher = BufferedPublisher(
            self, self._calls, lambda: self._key(None), bytes_max=buffer_bytes_max
        )
        context = TransactionContext(
            self.transactions if service is None else service,
            last=publisher,
            long=long,
            timeout_s=timeout_s,
            client=label,
            name=name,
        )
        return Transaction(self, publisher, context, aware)

    async def in_transaction(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        attempts_max: int = ATTEMPTS_MAX,
        begin: Callable[[], Transaction] | None = None,
    ) -> T:
        """Run ``work`` in a transaction; after a conflict, run it again in a fresh transaction.

        This function retries conflicts, and temporary refusals to begin a transaction. Before each retry it waits;
        the wait doubles and is randomized. It raises every other error at once: a transaction with an unknown
        outcome may be committed.

        Args:
            work: is called with the transaction. It may be called several times, so its effects outside of the
                transaction may happen several times.
            attempts_max: the maximum number of attempts.
            begin: makes each transaction; by default ``transaction``, without arguments.

        Returns:
            The result of ``work``, after the commit.

        Raises:
            TransactionConflict: the last attempt had a conflict, too.
            TypeError: ``work`` can't be called with a transaction.
        """
        return await repeat(begin or self.transaction, work, attempts_max)

    @property
    def dead_letters(self) -> DeadLetterCalls:
        """The calls of dead letters: the messages that a subscriber gave up."""
        return DeadLetterCalls(self)

    @property
    def transactions(self) -> TransactionService:
        """The single calls of the broker's transaction service. ``transaction`` makes them in the right order."""
        return TransactionService(self._calls, self._name_epochs)

    # --- The cluster ------------------------------------------------------------------------------

    async def ask(self, request: ClientRequest) -> dict[str, Any]:
        """Send a request of ``broker.client.admin`` and return the JSON object of its answer."""
        return await self._calls.ask(request, read_as(request.answer))

    # --- Inside -----------------------------------------------------------------------------------

    def _forget_loop(self) -> None:
        """Forget what belongs to a loop that has ended: its messages are not settled, and never will be."""
        self._publishers.clear()
        self._later_publishers.clear()
        self._room.clear()
        if self._later is not None:
            self._later.forget()

    def _key(self, key: str | None) -> str | None:
        return uuid.uuid4().hex if key is None and self.settings.idempotent else key

    def _publisher(self, topic: TopicName) -> TopicPublisher:
        """Return the publisher of a topic; create it on first use."""
        identifier = self._topic(topic)
        publisher = self._publishers.get(identifier)
        if publisher is None:
            publisher = self._publishers[identifier] = self._new_publisher(
                identifier, self.settings
            )
        self._publishers[topic] = publisher
        return publisher

    def _new_publisher(self, topic: TopicId, settings: Settings) -> TopicPublisher:
        before = asyncio.get_running_loop().time() - self.settings.idle_s_max
        for other in {*self._publishers.values(), *self._later_publishers.values()}:
            other.close_if_idle(before)
        return TopicPublisher(topic, settings, self._transport, self._retrier, self._room)
