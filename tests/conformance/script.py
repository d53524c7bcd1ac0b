"""Run a scenario against one server, and make the transcript by which two servers are compared.

Ids and times differ between two runs. So the transcript names ids by their order of appearance, and keeps the relations
between them:

    r1 r2 ...   log keys of the message table, a name per topic
    p1 p2 ...   log keys of payloads, within their reference: r3/p1
    order       all names of a topic in the order of the ids' bytes, at the end of the transcript

JSON is compared as values, and a poll's reply as messages, because an array may be split into any blocks.
"""

import hashlib
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import fastavro

from broker.clock import SystemClock
from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MIN,
    Message,
    Poll,
    PublishRequest,
    RollbackRange,
    Snapshot,
)
from broker.wire import avro
from tests.conformance.exchange import Connection, Received, Sent
from tests.kit.schemas import CONSUME_RESPONSE

AVRO = {"Content-Type": "avro/binary"}
DEADLINE_MS = 30_000
SHOWN_MAX = 200

_POLL_REPLY = fastavro.parse_schema(CONSUME_RESPONSE)

Properties = dict[str, object] | bytes | None


class View(NamedTuple):
    """The compared parts of an answer."""

    status: int
    type: str
    framing: str
    closed: bool
    encoding: str
    body: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a scenario, its answer, and the right body if the scenario gives one."""

    label: str
    view: View
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a transactional publish: its bytes, which a rollback sends back, and their decoded form."""

    raw: bytes
    rows: RollbackRange


@dataclass(slots=True)
class Names:
    """The names of one topic's ids, one set for each of its generations."""

    rows: dict[bytes, str] = field(default_factory=dict)
    payloads: dict[tuple[bytes, bytes], str] = field(default_factory=dict)

    def row(self, row: bytes) -> str:
        return self.rows.setdefault(row, f"r{len(self.rows) + 1}")

    def message(self, identifier: bytes) -> str:
        row, payload = identifier[:LOG_KEY_BYTES], identifier[LOG_KEY_BYTES:]
        name = self.row(row)
        if payload == LOG_KEY_MIN:
            return name
        known = sum(1 for known_row, _ in self.payloads if known_row == row)
        return f"{name}/{self.payloads.setdefault((row, payload), f'p{known + 1}')}"

    def in_order(self) -> str:
        named = [(row + LOG_KEY_MIN, name) for row, name in self.rows.items()]
        named += [(r + p, f"{self.rows[r]}/{name}") for (r, p), name in self.payloads.items()]
        return " ".join(name for _, name in sorted(named))


class Script:
    """A scenario in progress. Every request method sends one request and keeps the answer.

    ``first_pointer`` is the write pointer of ``tx(0)`` in scenarios; it is the same at both servers.
    """

    def __init__(self, name: str, connection: Connection, first_pointer: int) -> None:
        self.name = name
        self.transcript: list[Exchange] = []
        self._namespace = f"/v1/namespaces/{name}"
        self._connection = connection
        self._first_pointer = first_pointer
        self._names: dict[str, Names] = {}
        self._labels = Counter[str]()
        self._clock = SystemClock()

    # Any requests.

    def send(self, label: str, sent: Sent) -> Received:
        """Send any request."""
        return self._send(label, sent, _shown)

    def path(self, topic: str, action: str = "") -> str:
        """Return the path of a topic in this scenario's namespace, or of one of its actions."""
        return f"{self._namespace}/topics/{topic}" + (f"/{action}" if action else "")

    @property
    def topics_path(self) -> str:
        """The path of this scenario's list of topics."""
        return f"{self._namespace}/topics"

    # The nine endpoints.

    def create(self, topic: str, properties: Properties = None) -> None:
        received = self._put("create", topic, self.path(topic), properties)
        if received.status == 200:
            self._names[topic] = Names()

    def update(self, topic: str, properties: Properties = None) -> None:
        self._put("update", topic, self.path(topic, "properties"), properties)

    def show(self, topic: str) -> None:
        self.send(f"show {topic}", Sent("GET", self.path(topic)))

    def listing(self) -> None:
        self.send("list", Sent("GET", self.topics_path))

    def delete(self, topic: str) -> None:
        self.send(f"delete {topic}", Sent("DELETE", self.path(topic)))

    def publish(self, topic: str, *texts: str, tx: int | None = None) -> Published | None:
        pointer = None if tx is None else self.tx(tx)
        body = avro.encode_publish_request(PublishRequest(pointer, [t.encode() for t in texts]))
        label = f"publish {topic}: {_said(texts, tx)}"
        return self.publish_raw(topic, body, label=label)

    def publish_raw(self, topic: str, body: bytes, *, label: str) -> Published | None:
        """Publish with these bytes as the body."""
        rows: list[RollbackRange] = []

        def show(received: Received) -> str:
            if received.status != 200 or not received.body:
                return _shown(received)
            rows.append(avro.decode_publish_response(received.body))
            names = self._names_of(topic)
            first, last = names.row(rows[0].first), names.row(rows[0].last)
            return f"tx{rows[0].pointer - self._first_pointer} {first} to {last}"

        received = self._send(label, Sent("POST", self.path(topic, "publish"), body, AVRO), show)
        return Published(received.body, rows[0]) if rows else None

    def store(self, topic: str, *texts: str, tx: int | None = None) -> None:
        pointer = None if tx is None else self.tx(tx)
        body = avro.encode_publish_request(PublishRequest(pointer, [t.encode() for t in texts]))
        label = f"store {topic}: {_said(texts, tx)}"
        self.send(label, Sent("POST", self.path(topic, "store"), body, AVRO))

    def rollback(self, topic: str, published: Published | RollbackRange | None, said: str) -> None:
        """Roll back a publish by its answer, or a given range; ``said`` names it."""
        assert published is not None, "the publish was not transactional"
        raw = (
            avro.encode_publish_response(published)
            if isinstance(published, RollbackRange)
            else published.raw
        )
        self.send(f"rollback {topic}: {said}", Sent("POST", self.path(topic, "rollback"), raw))

    def poll(
        self,
        topic: str,
        start: bytes | int | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        snapshot: Snapshot | None = None,
        said: str = "",
        right: Sequence[Message] | None = None,
    ) -> list[Message]:
        """Poll. ``said`` names the start or snapshot; ``right`` are the messages of the right answer."""
        body = avro.encode_poll(Poll(start, inclusive, limit, snapshot))
        parts = [f"poll {topic}", said, "" if inclusive else "exclusive"]
        parts.append("" if limit is None else f"limit {limit}")
        label = " ".join(part for part in parts if part)
        return self.poll_raw(topic, body, label=label, right=right)

    def poll_raw(
        self,
        topic: str,
        body: bytes,
        *,
        label: str,
        headers: dict[str, str] | None = None,
        chunks: tuple[bytes, ...] | None = None,
        right: Sequence[Message] | None = None,
    ) -> list[Message]:
        """Poll with these bytes as the body."""
        found: list[Message] = []

        def show(received: Received) -> str:
            if received.status != 200:
                return _shown(received)
            if not received.whole:
                return "cut off"
            found.extend(_messages(received.body))
            return self._shown_messages(topic, found)

        sent = Sent("POST", self.path(topic, "poll"), body, AVRO | (headers or {}), chunks)
        expected = None if right is None else self._shown_messages(topic, right)
        self._send(label, sent, show, expected)
        return found

    # Parts of requests.

    def tx(self, number: int) -> int:
        """Return the write pointer with this number in the scenario."""
        return self._first_pointer + number

    def snapshot(
        self,
        read: int,
        *,
        own: int = 900,
        invalid: Sequence[int] = (),
        in_progress: Sequence[int] = (),
        visibility: Snapshot.Visibility = Snapshot.Visibility.SNAPSHOT,
    ) -> Snapshot:
        """Return a snapshot, given by the scenario's numbers."""
        return Snapshot(
            transaction_id=self.tx(own),
            read_pointer=self.tx(read),
            invalids=[self.tx(number) for number in invalid],
            in_progress=[self.tx(number) for number in in_progress],
            visibility=visibility,
        )

    def next_millisecond(self) -> None:
        """Wait until the next publish gets a later time than all publishes before."""
        # Ids may be ahead of the clock by a millisecond after a leader's start.
        now_ms = self._clock.now_ms()
        self._await(lambda: self._clock.now_ms() > now_ms + 2, "the clock to go on")

    def expired(self, topic: str) -> None:
        """Wait until all messages of the topic have expired. These requests are not in the transcript."""
        sent = Sent("POST", self.path(topic, "poll"), avro.encode_poll(Poll()), AVRO)
        self._await(lambda: self._connection.send(sent).body == b"\0", f"{topic} to expire")

    # The transcript.

    def end(self) -> None:
        """Add the order of all ids."""
        for topic, names in sorted(self._names.items()):
            if not names.rows:
                continue
            view = View(0, "", "", False, "", names.in_order())
            self.transcript.append(Exchange(f"order of {topic}", view))

    def _put(self, verb: str, topic: str, path: str, properties: Properties) -> Received:
        body = b"" if properties is None else properties
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        shown = f"{len(body)} bytes" if len(body) > SHOWN_MAX else body.decode(errors="replace")
        return self.send(f"{verb} {topic} {shown}".rstrip(), Sent("PUT", path, body))

    def _send(
        self,
        label: str,
        sent: Sent,
        show: Callable[[Received], str],
        expected: str | None = None,
    ) -> Received:
        self._labels[label] += 1
        if (count := self._labels[label]) > 1:
            label = f"{label} ({count})"
        received = self._connection.send(sent)
        view = View(
            received.status,
            received.type,
            received.framing,
            received.closed,
            received.encoding,
            show(received),
        )
        self.transcript.append(Exchange(label, view, expected))
        return received

    def _names_of(self, topic: str) -> Names:
        return self._names.setdefault(topic, Names())

    def _shown_messages(self, topic: str, messages: Sequence[Message]) -> str:
        if len(messages) <= SHOWN_MAX:
            names = self._names_of(topic)
            return " ".join(f"{names.message(m.id)}={m.payload.decode()}" for m in messages)
        digest = hashlib.sha256(b"\n".join(m.payload for m in messages)).hexdigest()[:12]
        ids = [m.id for m in messages]
        rises = all(a < b for a, b in itertools.pairwise(ids))
        return f"{len(messages)} messages, {digest}, ids {'rise' if rises else 'do not rise'}"

    def _await(self, happened: Callable[[], bool], event: str) -> None:
        deadline_ms = self._clock.now_ms() + DEADLINE_MS
        while not happened():
            assert self._clock.now_ms() < deadline_ms, f"waited {DEADLINE_MS} ms for {event}"


def _said(texts: Sequence[str], tx: int | None) -> str:
    said = " ".join(text or '""' for text in texts) or "nothing"
    if len(said) > SHOWN_MAX:
        said = f"{len(texts)} messages"
    return said if tx is None else f"{said} in tx{tx}"


def _messages(body: bytes) -> list[Message]:
    """Read a reply with another implementation of Avro; the reply must end with its array."""
    rest = io.BytesIO(body)
    read = fastavro.schemaless_reader(rest, _POLL_REPLY, None)
    assert isinstance(read, list)
    left = rest.read()
    assert not left, f"{left!r} after the end of the array"
    return [Message(item["id"], item["payload"]) for item in read]


def _shown(received: Received) -> str:
    """Return a body as text; JSON is normalized, with its fields in their order."""
    text = received.body.decode(errors="backslashreplace")
    if received.type == "application/json" and text:  # An answer to HEAD has none.
        return json.dumps(json.loads(text))
    return text if len(text) <= 2 * SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
