"""Drive a whole broker in kill loops: over HTTP, with the client, as applications do.

Only answers to transactional publishes contain ids here. The other ids are found after the run. Each payload is
unique, so the id at which it was read is the id of its publish::

    publish ok, id ""   ──┐
    …                     ├──►  located(events)  ──►  publish ok, id 0000019a…   or no id: it is lost
    read ok, rows       ──┘                                or gone with an earlier generation
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from broker.client import BrokerError, Client, Published, TopicExists
from broker.model import LOG_KEY_BYTES, MESSAGE_ID_BYTES, MessageId, RollbackRange, Snapshot
from broker.testing.broker_process import BrokerProcess
from broker.wire import avro
from chaos.history import Event
from chaos.labels import collapse, expand
from tests.kit.driver import Done, Refused, TopicContents, UnknownResult

T = TypeVar("T")
PAGE = 10_000
_DEADLINE_S = 10.0


class BrokerDriver:
    """Drives a broker process. The broker must accept transactions of any age."""

    def __init__(self, broker: BrokerProcess) -> None:
        """Keep the process, which is started, killed and started again."""
        self._broker = broker
        self._client: Client | None = None

    async def start(self) -> None:
        """Start the broker and wait until it serves."""
        await asyncio.to_thread(self._broker.start)
        self._client = Client(self._broker.url, deadline_s=_DEADLINE_S, coalesce=False)

    async def kill(self) -> None:
        """Kill the broker with SIGKILL, and give up the calls in flight."""
        client, self._client = self._client, None
        self._broker.kill()
        if client is not None:
            await client.close()

    async def _ask(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except BrokerError as error:
            if self._client is None or error.outcome == "unknown":
                raise UnknownResult(repr(error)) from error
            raise Refused(repr(error)) from error

    @property
    def client(self) -> Client:
        """The client of this life. Raises UnknownResult if the broker was killed."""
        if self._client is None:
            raise UnknownResult("killed before")
        return self._client

    async def create(self, topic: str) -> int:
        """Create a topic. It may exist still, if a kill interrupted its deletion."""
        client = self.client
        try:
            await self._ask(client.create_topic(topic))
        except Refused as refused:
            if not isinstance(refused.__cause__, TopicExists):
                raise
        return (await self._ask(client.topic(topic))).generation

    async def delete(self, topic: str, generation: int) -> None:
        """Delete a topic that only one worker uses."""
        del generation
        await self._ask(self.client.delete_topic(topic))

    async def publish(
        self,
        topic: str,
        generation: int,
        payloads: Sequence[str],
        *,
        pointer: int | None = None,
        key: str | None = None,
    ) -> Done:
        """Publish; without a transaction the result has no ids."""
        del generation
        messages = [expand(payload) for payload in payloads]
        publishing = self.client.publish(topic, messages, pointer=pointer, idempotency_key=key)
        return _done(await self._ask(publishing))

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> None:
        """Roll a publish back."""
        del generation
        rows = RollbackRange(pointer, bytes.fromhex(first), bytes.fromhex(last))
        published = Published(avro.encode_publish_response(rows))
        await self._ask(self.client.rollback(topic, published))

    async def store(
        self, topic: str, generation: int, payloads: Sequence[str], number: int
    ) -> Done:
        """Store payloads of a transaction."""
        del generation
        messages = [expand(payload) for payload in payloads]
        await self._ask(self.client.store(topic, messages, pointer=number))
        return Done("", "")

    async def reference(self, topic: str, generation: int, number: int) -> Done:
        """Publish the stored payloads; a repetition has no further effect."""
        del generation
        return _done(await self._ask(self.client.publish_stored(topic, pointer=number)))

    async def read(self, topic: str, generation: int) -> TopicContents:
        """Browse a topic to its end, and check that a consumer reads the same messages."""
        client = self.client
        found = (await self._ask(client.topic(topic))).generation
        assert found == generation, f"{topic} is of generation {found}, not {generation}"
        rows: list[tuple[str, str | None, int | None]] = []
        shown: list[MessageId] = []
        start: str | None = None
        while True:
            page = await self._ask(client.browse(topic, start=start, limit=PAGE, full=True))
            for entry in page.messages:
                pointer = entry.write_pointer
                if pointer is not None and entry.tx_state == "rolled_back":
                    pointer = -pointer
                if entry.kind != "stored":
                    label = None if entry.payload is None else collapse(entry.payload)
                    rows.append((entry.id[:LOG_KEY_BYTES].hex(), label, pointer))
                if entry.kind != "reference":
                    shown.append(entry.id)
            start = page.next
            if start is None:
                break
        consumed = [message.id for message in await self._ask(client.poll(topic))]
        assert consumed == shown, f"{topic}: a poll and a browse return different messages"
        await self._check_rolled_back(topic, rows)
        return TopicContents(rows, "", rows[-1][0] if rows else "0" * 2 * LOG_KEY_BYTES)

    async def _check_rolled_back(
        self, topic: str, rows: Sequence[tuple[str, str | None, int | None]]
    ) -> None:
        everything = Snapshot(transaction_id=1 << 60, read_pointer=1 << 60)
        polled = await self._ask(self.client.poll(topic, snapshot=everything))
        visible = {message.id[:LOG_KEY_BYTES].hex() for message in polled}
        hidden = {row for row, _, pointer in rows if pointer is not None and pointer < 0}
        assert not hidden & visible, f"{topic}: a transaction sees rolled-back messages"

    async def payloads(
        self, topic: str, generation: int, number: int
    ) -> list[tuple[str, str | None]]:
        """Publish the stored payloads if no call did before, and browse the messages at their reference."""
        reference = bytes.fromhex((await self.reference(topic, generation, number)).first)
        start = reference + bytes(MESSAGE_ID_BYTES - LOG_KEY_BYTES)
        stop = reference + b"\xff" * (MESSAGE_ID_BYTES - LOG_KEY_BYTES)
        browsing = self.client.browse(topic, start=start, stop=stop, limit=PAGE, full=True)
        page = await self._ask(browsing)
        return [
            (entry.id.hex(), None if entry.payload is None else collapse(entry.payload))
            for entry in page.messages
            if entry.kind == "stored"
        ]


def _done(published: Published) -> Done:
    if published.rollback is None:
        return Done("", "", replayed=published.replayed)
    rows = avro.decode_publish_response(published.rollback)
    return Done(rows.first.hex(), rows.last.hex(), replayed=published.replayed)


def located(events: Sequence[Event]) -> list[Event]:
    """Return the events, with the ids of acknowledged publishes filled in from the reads of their payloads."""
    places: dict[str, str] = {}
    for event in events:
        if event.type == "ok" and event.op == "read":
            places.update({payload: row for row, payload, _ in event.value["rows"] if payload})
    asked: dict[str, Event] = {}
    found = []
    for event in events:
        if event.type == "invoke":
            asked[event.process] = event
        elif event.type == "ok" and event.op == "publish" and not event.id:
            payloads = asked[event.process].value["payloads"]
            first, last = places.get(payloads[0]), places.get(payloads[-1], "")
            event = replace(event, id=first, value={**event.value, "last": last})  # noqa: PLW2901
        found.append(event)
    return found
