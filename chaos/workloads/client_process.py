"""One process of a workload: it makes calls through the real client, one at a time, and records them.

The history gets the client's view. An acknowledgement is *ok*. An error with the ``outcome`` *refused* is
*fail*. Everything else is *unknown*, also a cancelled call. After an unknown publish, a process goes on
under another name, because the unknown publish may be stored between later ones.

Payloads are unique labels, or (``Scale.padded``) larger payloads made from labels. Some messages have a key
and headers, which follow from their label (``beside``). A row of a read gives them if they are not the
expected ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from broker import retries
from broker.client import (
    BrokerError,
    Browsed,
    BrowsePage,
    Message,
    Published,
    Snapshot,
    TopicId,
    TopicNotFound,
)
from broker.client.values import Producer, Publishable
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, MESSAGE_ID_BYTES, MessageId
from chaos.history import Ending, Value, snapshot_value
from chaos.labels import collapse, expand
from chaos.workloads.beside import message_of, others
from chaos.workloads.workload import WorkloadSurroundings

T = TypeVar("T")

PAUSE_MEANS_MAX: Final = 5
"""The longest pause, as a multiple of the mean."""
NAMESPACE = "default"
"""The namespace of the workloads' topics."""


class TopicTarget(NamedTuple):
    """A topic as a workload knows it. Its generation is 0 if the workload can't know it."""

    name: str
    generation: int = 0
    namespace: str = NAMESPACE

    @property
    def id(self) -> TopicId:
        """Return the topic's id."""
        return TopicId(self.namespace, self.name)


def short(identifier: MessageId) -> str:
    """Return an id as a history has it: the row's 20 digits, or 40 digits for a stored payload."""
    if identifier[LOG_KEY_BYTES:] == LOG_KEY_MIN:
        return identifier[:LOG_KEY_BYTES].hex()
    return identifier.hex()


async def until_answered(
    around: WorkloadSurroundings, deadline: float, work: Callable[[], Awaitable[T]]
) -> T:
    """Return what a call returns; repeat it when it fails with a BrokerError, until a time by its clock."""

    def pause_s(error: Exception, _: int) -> float | None:
        is_over = around.clock.monotonic() >= deadline
        return around.scale.again_s if isinstance(error, BrokerError) and not is_over else None

    return await retries.repeat(work, pause_s, around.clock.sleep)


def before(identifier: MessageId) -> MessageId:
    """Return the greatest id below the given one; the least id for the least id."""
    number = int.from_bytes(identifier, "big")
    return max(number - 1, 0).to_bytes(MESSAGE_ID_BYTES, "big")


class ClientProcess:
    """A process with its own client; a context manager that closes the client.

    Args:
        around: its surroundings.
        name: its name, unique in the run.
        node: the only node that its client uses; by default, the client follows the leaders.
        settings: settings of its client.
    """

    def __init__(
        self, around: WorkloadSurroundings, name: str, *, node: str | None = None, **settings: Any
    ) -> None:
        self.around = around
        settings.setdefault("deadline_s", around.scale.deadline_s)
        self.client = around.client(name, node=node, **settings)
        self.count = 0
        self._name = name
        self._lives = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.close()

    @property
    def name(self) -> str:
        """Return its name in the history, a new one after each ``live_on``."""
        return f"{self._name}+{self._lives}" if self._lives else self._name

    def live_on(self) -> None:
        """Go on under a new name."""
        self._lives += 1

    async def pause(self, mean_s: float | None = None) -> None:
        """Pause for a random time, with the given mean or that of the scale."""
        mean_s = self.around.scale.pause_s if mean_s is None else mean_s
        await self.around.clock.sleep(
            min(self.around.chance.expovariate(1 / mean_s), PAUSE_MEANS_MAX * mean_s)
            if mean_s
            else 0
        )

    def labels(self, count: int | None = None) -> list[str]:
        """Return new labels, of the given or a random number."""
        self.count += 1
        count = count or self.around.chance.randint(1, self.around.scale.messages_max)
        return [f"{self._name}:{self.count}:{part}" for part in range(count)]

    def message(self, label: str) -> Publishable:
        """Return the message to publish for a label."""
        payload = expand(label) if self.around.scale.padded else label.encode()
        return message_of(label, payload)

    def label(self, payload: bytes) -> str:
        """Return the label of a read payload."""
        return collapse(payload) if self.around.scale.padded else payload.decode(errors="replace")

    @contextmanager
    def asking(
        self, op: str, topic: TopicId | None, value: Value, name: str | None = None
    ) -> Iterator[Ending]:
        """Write an invoke. If the body raises an error, write the end of the call and raise it again."""
        where = "" if topic is None else str(topic)
        ending = self.around.history.invoke(name or self.name, op, where, value)
        try:
            yield ending
        except BrokerError as error:
            if ending.is_open:
                note(ending, error)
            raise
        except BaseException as error:
            if ending.is_open:
                ending.unknown(type(error).__name__)
            raise

    # Topics.

    async def create(self, target: TopicTarget, *, ttl_s: int | None = None) -> TopicTarget:
        """Create a topic and return it with its generation. Raises BrokerError."""
        asked: Value = {"generation": 0}
        if ttl_s is not None:
            asked["ttl_s"] = ttl_s
        with self.asking("create", target.id, asked) as ending:
            await self.client.create_topic(target.id, ttl_s=ttl_s)
            generation = await self.generation(target) or 0
            ending.ok({"generation": generation})
        return target._replace(generation=generation)

    async def generation(self, target: TopicTarget) -> int | None:
        """Return a topic's generation; 0 if there is no such topic, None if the call fails."""
        try:
            return (await self.client.topic(target.id)).generation
        except TopicNotFound:
            return 0
        except BrokerError:
            return None

    # Writing.

    async def publish(  # noqa: PLR0913 - Callers pass these options of a publish by name.
        self,
        target: TopicTarget,
        labels: Sequence[str],
        *,
        pointer: int | None = None,
        ttl_s: int | None = None,
        key: str | None = None,
        producer: Producer | None = None,
        until_ms: int | None = None,
        publishing: Awaitable[Published] | None = None,
        of_stages: bool = False,
    ) -> Published:
        """Publish messages, in a transaction if there is a pointer; or await ``publishing`` instead.

        With ``producer``, the producer's number makes the publish happen once, and ``key`` is only its name
        in the history. ``of_stages`` means that ``publishing`` publishes stages: the ids in its answer are
        not those of the messages.

        Raises:
            BrokerError: as the client does.
        """
        asked = asked_of(target, labels, pointer=pointer, ttl_s=ttl_s, key=key, until_ms=until_ms)
        if publishing is None:
            publishing = self.client.publish(
                target.id,
                [self.message(label) for label in labels],
                pointer=pointer,
                ttl_s=ttl_s,
                idempotency_key=key if producer is None else None,
                producer=producer,
                coalesce=False,
            )
        try:
            with self.asking("publish", target.id, asked) as ending:
                published = await publishing
                tell(ending, published, of_stages=of_stages)
        except BrokerError as error:
            if error.outcome == "unknown":
                self.live_on()
            raise
        return published

    # Reading.

    async def poll(
        self,
        target: TopicTarget,
        start: MessageId | int | None = None,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        wait_s: float | None = None,
        snapshot: Snapshot | None = None,
    ) -> list[Message]:
        """Poll after an id, from a time on, or from the beginning. Raises BrokerError."""
        asked = self.read_asked(target, start, cursor=cursor, snapshot=snapshot)
        asked |= {"limit": limit, "wait": wait_s}
        with self.asking("read", target.id, asked) as ending:
            page = await self.client.poll(
                target.id,
                start,
                inclusive=False,
                limit=limit,
                wait_s=wait_s,
                snapshot=snapshot,
            )
            self.read_told(ending, page)
        return page

    def read_asked(
        self,
        target: TopicTarget,
        start: MessageId | int | None = None,
        *,
        cursor: str | None = None,
        snapshot: Snapshot | None = None,
    ) -> Value:
        """Return the invoke's value for a consumer's read."""
        asked: Value = {"generation": target.generation, "view": "messages"}
        if isinstance(start, int):
            asked["time"] = start
        elif start is not None:
            asked["after"] = short(start)
        if cursor is not None:
            asked["cursor"] = cursor
        if snapshot is not None:
            asked["snapshot"] = snapshot_value(snapshot)
        return asked | {"at_ms": self.around.clock.now_ms()}

    def read_told(self, ending: Ending, messages: Sequence[Message]) -> None:
        """Write that a read was answered with these messages."""
        rows = [self._row(message) for message in messages]
        ending.ok({"rows": rows, "at_ms": self.around.clock.now_ms()})

    def _row(self, message: Message) -> list[Any]:
        label = self.label(message.payload)
        return [short(message.id), label, None, *others(label, message.key, message.headers)]

    async def browse(
        self,
        target: TopicTarget,
        start: MessageId | None = None,
        *,
        descending: bool = False,
        limit: int | None = None,
    ) -> BrowsePage:
        """Browse a page from an id on, or the page before it. Raises BrokerError."""
        asked: Value = {"generation": target.generation, "view": "all", "limit": limit}
        if start is not None:
            asked["through" if descending else "after"] = short(before(start))
        if descending:
            asked["reverse"] = True
        asked["at_ms"] = self.around.clock.now_ms()
        with self.asking("read", target.id, asked) as ending:
            page = await self.client.browse(
                target.id,
                start=None if descending else start,
                stop=start if descending else None,
                descending=descending,
                limit=limit,
                full=True,
            )
            told: Value = {"rows": [self._shown(entry) for entry in page.messages]}
            if descending and not page.messages:
                told["seen"] = "0" * 2 * LOG_KEY_BYTES  # There is no message down to the least id.
            ending.ok(told | {"at_ms": self.around.clock.now_ms()})
        return page

    def _shown(self, entry: Browsed) -> list[Any]:
        pointer = entry.write_pointer
        if pointer is not None and entry.tx_state == "rolled_back":
            pointer = -pointer
        if entry.payload is None:
            return [short(entry.id), None, pointer]
        label = self.label(entry.payload)
        return [short(entry.id), label, pointer, *others(label, entry.key, entry.headers)]


def asked_of(
    target: TopicTarget,
    labels: Sequence[str],
    *,
    pointer: int | None = None,
    ttl_s: int | None = None,
    key: str | None = None,
    until_ms: int | None = None,
) -> Value:
    """Return the invoke's value for a publish."""
    asked: Value = {"payloads": list(labels), "generation": target.generation}
    asked |= {"pointer": pointer, "key": key}
    if until_ms is not None:
        asked["until_ms"] = until_ms
    return asked if ttl_s is None else asked | {"ttl_ms": ttl_s * 1000}


def tell(ending: Ending, published: Published, *, of_stages: bool = False) -> None:
    """Write that a publish was acknowledged, with the leader and the ids if the answer gives them."""
    leader = published.leader
    if leader is not None:
        ending.node, ending.epoch = leader.url, leader.epoch
    value: Value = {"last": ""}
    if published.replayed:
        value["replayed"] = True
    first, last = published.first_id, published.last_id
    if first is None or last is None or of_stages:
        ending.ok(value, "")
    else:
        ending.ok(value | {"last": short(last)}, short(first))


def note(ending: Ending, error: BrokerError) -> None:
    """Write that a call ended in an error."""
    why = f"{type(error).__name__}: {error.message}"
    (ending.unknown if error.outcome == "unknown" else ending.fail)(why)
