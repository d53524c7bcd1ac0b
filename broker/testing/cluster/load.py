"""Applications at work on a cluster, whose history the checkers judge.

Publishers publish unique payloads, one request after the other, through the real client; consumers page
and wait, or take a stream of events; some go to leaders, some stay with one node whoever leads. When the load has ended, every node
is asked for every topic: all must show the same log, and that is what the checkers hold the rest against::

    async with ClusterLoad(urls, topics) as load:
        await load.acknowledged(500)        # it is under way
        node.kill()
        await load.acknowledged(500)        # it has gone on
    verdict = load.verdict                  # of broker.testing.checkers

A wait that takes too long says what every process was doing.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from broker.client import BrokerError, Client
from broker.model import MESSAGE_ID_BYTES, ROW_ID_BYTES, Message, MessageId
from broker.testing.checkers import Verdict, check
from broker.testing.checkers.violations import Violation
from broker.testing.history import Ending, History, calls_of
from broker.testing.kill_broker import located

DEADLINE_S: Final = 60.0
WAIT_S: Final = 2.0
FINAL_S: Final = 60.0
PAGE: Final = 500
_NOTHING: Final = "0" * 2 * ROW_ID_BYTES
_EVERYTHING: Final = "f" * 2 * ROW_ID_BYTES


class ClusterLoad:
    """Publishers and consumers of some topics; a context manager that ends with the final reads.

    Args:
        urls: The nodes.
        topics: Are created.
        publishers: For each topic. Every second one sends idempotency keys; every third one stays with
            one node, so that what it publishes is forwarded.
        state: What to tell in the message of a wait that took too long.
        deadline_s: Of each publish.
    """

    def __init__(
        self,
        urls: Sequence[str],
        topics: Sequence[str],
        *,
        publishers: int = 4,
        state: Callable[[], str] = lambda: "",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.history = History(time.monotonic_ns)
        self.counts = {"ok": 0, "fail": 0, "unknown": 0}
        self.errors: list[str] = []
        self.latencies_s: list[float] = []
        self._urls = list(urls)
        self._topics = list(topics)
        self._publishers = publishers
        self._state = state
        self._deadline_s = deadline_s
        self._clients: list[Client] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._progress = asyncio.Event()
        self._final: dict[tuple[str, str], list[tuple[str, str]]] = {}

    async def __aenter__(self) -> Self:
        """Create the topics and begin."""
        first = self._client(self._urls)
        for topic in self._topics:
            await first.create_topic(topic)
        for number, topic in enumerate(self._topics):
            for one in range(self._publishers):
                self._tasks.append(asyncio.create_task(self._publish(number, topic, one)))
            for one in (0, 1):
                self._consumers.append(asyncio.create_task(self._consume(number, topic, one)))
            self._consumers.append(asyncio.create_task(self._stream(number, topic)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish what is under way, read everything everywhere, and close the clients."""
        self._stopping = True
        try:
            if error is None:
                await self._within(asyncio.gather(*self._tasks), "publishers have not ended")
                await self._within(self._read_all(), "the final reads have not ended")
        finally:
            for task in (*self._tasks, *self._consumers):
                task.cancel()
            await asyncio.gather(*self._tasks, *self._consumers, return_exceptions=True)
            for client in self._clients:
                await client.close()

    async def acknowledged(self, more: int, deadline_s: float = DEADLINE_S) -> None:
        """Return once so many more publishes were acknowledged."""
        wanted = self.counts["ok"] + more
        await self._within(self._until(wanted), f"no {more} more were acknowledged", deadline_s)

    async def _until(self, wanted: int) -> None:
        while self.counts["ok"] < wanted:
            self._progress.clear()
            await self._progress.wait()

    async def _within(
        self, work: Awaitable[object], what: str, deadline_s: float = DEADLINE_S
    ) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await work
        except TimeoutError:
            told = f"{self.counts}; last errors {self.errors[-5:]}; {self._state()}"
            raise AssertionError(f"{what} in {deadline_s:g} s: {told}") from None

    def _client(self, urls: Sequence[str], *, follow: bool = True) -> Client:
        client = Client(
            urls,
            coalesce=False,
            follow_leaders=follow,
            deadline_s=self._deadline_s,
            connect_timeout_s=2.0,
        )
        self._clients.append(client)
        return client

    # At work.

    async def _publish(self, number: int, topic: str, one: int) -> None:
        process = f"publisher-{number}-{one}"
        stays = one % 3 == 2
        place = (number + one) % len(self._urls)
        urls = [self._urls[place]] if stays else [*self._urls[place:], *self._urls[:place]]
        client = self._client(urls, follow=not stays)
        count = 0
        while not self._stopping:
            size = 1 + count % 3
            payloads = [f"{process}:{count}:{part}" for part in range(size)]
            key = uuid.uuid4().hex if one % 2 else None
            asked = {"payloads": payloads, "pointer": None, "key": key, "generation": 1}
            ending = self.history.invoke(process, "publish", topic, asked)
            began = time.monotonic()
            try:
                await client.publish(topic, [text.encode() for text in payloads], key=key)
            except BrokerError as error:
                self._failed(ending, error)
                process = self._next_life(process)
            else:
                ending.ok({"last": ""}, "")
                self.counts["ok"] += 1
            self.latencies_s.append(time.monotonic() - began)
            self._progress.set()
            count += 1

    def _failed(self, ending: Ending, error: BrokerError) -> None:
        self.errors.append(f"{type(error).__name__}: {error.message}")
        if error.outcome == "unknown":
            ending.unknown(error.message)
            self.counts["unknown"] += 1
        else:
            ending.fail(error.message)
            self.counts["fail"] += 1

    @staticmethod
    def _next_life(process: str) -> str:
        """Return another name: what is unknown may come in between what follows."""
        name, _, life = process.partition("+")
        return f"{name}+{int(life or 0) + 1}"

    async def _consume(self, number: int, topic: str, one: int) -> None:
        """Follow a topic by pages that wait; the second consumer stays with one node."""
        place = number % len(self._urls)
        urls = [self._urls[place]] if one else self._urls
        client = self._client(urls, follow=not one)
        process = f"consumer-{number}-{one}"
        after: MessageId | None = None
        while True:
            asked = self._asked(after, cursor=process)
            ending = self.history.invoke(process, "read", topic, asked)
            try:
                page = await client.poll(
                    topic, start=after, inclusive=False, limit=PAGE, wait_s=WAIT_S
                )
            except BrokerError as error:
                ending.unknown(error.message)
                continue
            self._told(ending, page, after)
            if page:
                after = page[-1].id

    async def _stream(self, number: int, topic: str) -> None:
        """Follow a topic by its stream of events, over whatever happens to connections."""
        process = f"stream-{number}"
        after: MessageId | None = None
        while True:
            events = self._client(self._urls).events(topic, after)
            with suppress(BrokerError):
                async for message in events:
                    ending = self.history.invoke(
                        process, "read", topic, self._asked(after, cursor=process)
                    )
                    self._told(ending, [message], after)
                    after = message.id

    async def _read_all(self) -> None:
        for number, topic in enumerate(self._topics):
            for place, url in enumerate(self._urls):
                client = self._client([url], follow=False)
                last = place == len(self._urls) - 1
                process = "final" if last else f"reader-{number}-{place}"
                ending = self.history.invoke(process, "read", topic, self._asked(None))
                messages = list(await client.poll(topic))
                self._told(ending, messages, None)
                self._final[topic, url] = [
                    (message.id.hex(), message.payload.decode()) for message in messages
                ]

    @staticmethod
    def _asked(after: MessageId | None, cursor: str | None = None) -> dict[str, object]:
        row = _NOTHING if after is None else after[:ROW_ID_BYTES].hex()
        return {
            "after": row,
            "through": _EVERYTHING,
            "reverse": False,
            "cursor": cursor,
            "generation": 1,
        }

    @staticmethod
    def _told(ending: Ending, page: Sequence[Message], after: MessageId | None) -> None:
        rows = [
            (message.id[:ROW_ID_BYTES].hex(), message.payload.decode(), None) for message in page
        ]
        seen = rows[-1][0] if rows else (after or bytes(MESSAGE_ID_BYTES))[:ROW_ID_BYTES].hex()
        ending.ok({"rows": rows, "seen": seen, "floor": "", "pointer": seen})

    # Judged.

    @property
    def verdict(self) -> Verdict:
        """What the checkers say, and whether all nodes show the same."""
        verdict = check(calls_of(located(self.history.events)))
        return verdict._replace(violations=(*verdict.violations, *self._divergences()))

    def _divergences(self) -> list[Violation]:
        found = []
        for topic in self._topics:
            first, *others = [self._final[topic, url] for url in self._urls]
            for url, other in zip(self._urls[1:], others, strict=True):
                if other != first:
                    differs = len(set(first) ^ set(other))
                    detail = (
                        f"{topic}: {url} shows another log than {self._urls[0]}: {differs} rows"
                    )
                    found.append(Violation("divergence", detail))
        return found
