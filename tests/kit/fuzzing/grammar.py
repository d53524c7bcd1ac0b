"""Make cases for every route, from the interface's own table of routes and with its own encoders."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from broker.clock import SystemClock
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, log_key
from broker.operations.operation import DeclaredOperation
from broker.operations.table import OPERATIONS
from broker.wire import avro, avrojson, messages, transaction
from broker.wire.attributes import encode as encode_attributes
from tests.kit.request_bodies import poll_in_avro_json, publish_in_avro_json

AVRO, MESSAGES, AVRO_JSON = "avro/binary", "avro/message", "avro/json"
JSON, TEXT, OCTETS = "application/json", "text/plain", "application/octet-stream"
NAMESPACE = "fuzz"
TOPICS = tuple(f"t{number}" for number in range(24))
ODD_NUMBERS = (0, 1, -1, 2, 127, 128, 255, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**64)
ODD_TEXTS = (
    "",
    "x",
    "né",
    "\N{PILE OF POO}",
    "a" * 300,
    '"',
    "\\u0000",
    "null",
    "%00",
    "../x",
    "1e9",
)
STREAMS = frozenset({"events"})
"""Routes whose replies don't end."""
OFTEN = frozenset({"create_topic", "publish", "store", "rollback", "poll", "browse_as"})
"""Routes with the most room for errors."""
RARE = frozenset(
    {"metrics", "openapi", "cluster", "list_topics", "namespaces", "arrow", "stats", "delete_topic"}
)
"""Routes whose replies cost much and differ little: they are drawn in 3 of 100 cases at most."""

PARAMETERS = {
    "wait": ("0", "0.01", "0.02", "-1", "1e999", "nan"),
    "order": ("asc", "desc", "ASC"),
    "payload": ("full", "preview", "none"),
    "topics": ("yes", f"{NAMESPACE}/t1", "no"),
}


class Case(NamedTuple):
    """One request as values."""

    route: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Grammar:
    """Makes cases; the same seed makes the same cases."""

    def __init__(self, rng: random.Random) -> None:
        """Draw all random numbers from ``rng``."""
        self._rng = rng
        self._now_ms = SystemClock().now_ms()
        self._common = [
            operation for operation in OPERATIONS if operation.name not in RARE | STREAMS
        ]
        self._all = list(OPERATIONS)
        self._common += [s for s in self._common if s.name in OFTEN] * 4
        self._bodies: Mapping[str, Callable[[], tuple[str, bytes]]] = {
            "publish": self._publish,
            "store": self._publish,
            "store_staged": self._publish,
            "rollback": self._rollback,
            "poll": self._poll,
            "browse_as": self._with_snapshot,
            "arrow_as": self._with_snapshot,
            "create_topic": self._properties,
            "update_topic": self._properties,
            "publish_stages": self._stages,
            "pin": self._pin,
        }

    def case(self) -> Case:
        """Make a case of some route."""
        rng = self._rng
        return self.of(rng.choice(self._common if rng.random() < 0.97 else self._all))

    def of(self, operation: DeclaredOperation) -> Case:
        """Make a case of this route."""
        headers: list[tuple[str, str]] = []
        body = b""
        if make := self._bodies.get(operation.name):
            content_type, body = make()
            headers.append(("Content-Type", content_type))
        if self._rng.random() < 0.3:
            headers += self._headers()
        target = self._path(operation.template) + self._query(operation)
        return Case(operation.name, operation.method, target, tuple(headers), body)

    # --- Parts of the head ------------------------------------------------------------------------

    def _path(self, template: str) -> str:
        rng = self._rng
        path = template.replace("{namespace}", NAMESPACE).replace("{topic}", rng.choice(TOPICS))
        path = path.replace("{stage}", str(self.number())).replace("{node}", str(self.number()))
        return path.replace("{service}", "messaging.service")

    def _query(self, operation: DeclaredOperation) -> str:
        rng = self._rng
        given = [name for name in operation.query if rng.random() < 0.4]
        if rng.random() < 0.02:
            given += rng.choices(("tll", "limit", "wait", "x"), k=2)
        pairs = [f"{name}={quote(self._parameter(name), safe=':')}" for name in given]
        return "?" + "&".join(pairs) if pairs else ""

    def _parameter(self, name: str) -> str:
        rng = self._rng
        if rng.random() < 0.05:
            return rng.choice(ODD_TEXTS)
        if name in {"from", "to", "after", "through", "before"}:
            return self._place()
        return rng.choice(PARAMETERS[name]) if name in PARAMETERS else str(self.number())

    def _place(self) -> str:
        rng = self._rng
        kind = rng.randrange(5)
        if kind == 0:
            return str(self._now_ms - rng.randrange(10_000))
        if kind == 1:
            return "2026-11-23T10:00:00Z"
        if kind == 2:
            return rng.choice(("now", "0", "-5", "9" * 30))
        return (log_key(self._now_ms + rng.randrange(-9_000, 99_000), rng.randrange(9)) * 2).hex()

    def _headers(self) -> list[tuple[str, str]]:
        rng = self._rng
        makers: Sequence[tuple[str, Callable[[], str]]] = (
            ("Accept", lambda: rng.choice((JSON, MESSAGES, AVRO, AVRO_JSON, "*/*", "text/html"))),
            ("Idempotency-Key", lambda: f"k{rng.randrange(100)}"),
            ("Producer-Id", lambda: f"p{rng.randrange(20)}"),
            ("Producer-Number", lambda: str(self.number())),
            ("Request-Timeout", lambda: rng.choice(("0.001", "1", "0", "-1", "x", "1e300"))),
            ("X-Request-Id", lambda: rng.choice(("me", "a" * 200, "é"))),
            ("Last-Event-ID", self._place),
            ("Origin", lambda: rng.choice(("null", "http://localhost", "http://x.example"))),
            ("Broker-From", lambda: "1"),
            ("Broker-Key", lambda: "k"),
            ("Content-Type", lambda: rng.choice((AVRO, JSON, TEXT, OCTETS, "x/y", ""))),
            ("Content-Encoding", lambda: rng.choice(("gzip", "br", "identity", "gzip, gzip"))),
            ("X-" + "y" * rng.randrange(20), lambda: "z" * rng.randrange(2_000)),
        )
        return [(name, make()) for name, make in rng.choices(makers, k=rng.randrange(1, 4))]

    # --- Bodies -----------------------------------------------------------------------------------

    def number(self) -> int:
        """Draw a number, mostly a small one."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.6:
            return rng.randrange(0, 60)
        return rng.choice(ODD_NUMBERS) if kind < 0.9 else rng.getrandbits(rng.randrange(1, 64))

    def pointer(self) -> int:
        """Draw one of 50 write pointers of transactions that are not too old."""
        return self._now_ms * 1_000_000 + self._rng.randrange(50)

    def _payload(self) -> bytes:
        rng = self._rng
        size = rng.choice((0, 1, 3, 20, 100, 100, 1_000))
        return rng.randbytes(size) if rng.random() < 0.5 else b"a" * size

    def _publish(self) -> tuple[str, bytes]:
        rng = self._rng
        pointer = self.pointer() if rng.random() < 0.5 else None
        payloads = [self._payload() for _ in range(rng.choice((0, 1, 1, 2, 5, 20)))]
        kind = rng.choice((AVRO, AVRO, MESSAGES, AVRO_JSON, JSON, JSON, TEXT, OCTETS))
        if kind in {TEXT, OCTETS}:
            return kind, self._payload()
        if kind == JSON:
            return kind, json.dumps(self._json_publish(pointer)).encode()
        if kind == MESSAGES:
            beside = [self._attributes() for _ in payloads]
            ttls = [rng.choice((None, 60, 1)) for _ in payloads]
            return kind, messages.encode_publish_request(
                PublishRequest(pointer, payloads, attributes=beside, ttls_s=ttls)
            )
        encode = avro.encode_publish_request if kind == AVRO else publish_in_avro_json
        return kind, encode(PublishRequest(pointer, payloads))

    def _attributes(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.5:
            return b""
        names = rng.choices(("trace", "a", "né"), k=rng.randrange(3))
        key = rng.choice((None, b"", b"key"))
        return encode_attributes(key, {name: self._payload()[:40] for name in names})

    def _json_publish(self, pointer: int | None) -> object:
        listed: list[object] = [self.value() for _ in range(self._rng.randrange(4))]
        if self._rng.random() < 0.3:
            return listed
        said: dict[str, Any] = {"messages": listed}
        if pointer is not None:
            said["write_pointer"] = self._rng.choice((pointer, str(pointer)))
        return said

    def value(self, depth: int = 0) -> object:
        """Draw a message in JSON, or another value."""
        rng = self._rng
        kind = rng.randrange(9)
        if kind < 3:
            return rng.choice(ODD_TEXTS)
        if kind == 3:
            return {"base64": rng.choice(("/w==", "YQ==", "!", ""))}
        if kind == 4:
            return {"value": "x", "key": rng.choice(ODD_TEXTS), "headers": {"a": "b"}, "ttl": 60}
        if kind == 5:
            return self.number()
        if kind == 6 and depth < 4:
            return [self.value(depth + 1)]
        return rng.choice((None, True, 1.5, {}, {"value": self.number()}))

    def _rollback(self) -> tuple[str, bytes]:
        rng = self._rng
        first = log_key(self._now_ms + rng.randrange(90_000), 0)
        last = log_key(self._now_ms + rng.randrange(90_000), 5)
        rows = RollbackRange(self.pointer(), first, last)
        if rng.random() < 0.5:
            return AVRO, avro.encode_publish_response(rows)
        if rng.random() < 0.5:
            return AVRO_JSON, avrojson.encode_publish_response(rows)
        ids = {"first_id": (first + bytes(10)).hex(), "last_id": (last + bytes(10)).hex()}
        said = {**ids, "count": 1, "replayed": False, "write_pointer": str(rows.pointer)}
        return JSON, json.dumps(said).encode()

    def snapshot(self) -> Snapshot:
        """Draw a snapshot."""
        rng = self._rng
        some = [self.pointer() for _ in range(rng.randrange(6))]
        cut = rng.randrange(len(some) + 1)
        return Snapshot(
            transaction_id=self.pointer(),
            read_pointer=self.pointer(),
            invalids=some[:cut],
            in_progress=some[cut:],
            checkpoint_pointers=some[:1],
            long=rng.random() < 0.5,
            visibility=rng.choice(list(Snapshot.Visibility)),
        )

    def _poll(self) -> tuple[str, bytes]:
        rng = self._rng
        start = rng.choice((None, self._now_ms, (log_key(self._now_ms, 3) + bytes(10))))
        snapshot = self.snapshot() if rng.random() < 0.5 else None
        poll = Poll(start, rng.random() < 0.5, rng.choice((1, 2, 10, 50)), snapshot)
        kind = rng.choice((AVRO, AVRO, AVRO_JSON, JSON))
        if kind == AVRO:
            return kind, avro.encode_poll(poll)
        if kind == AVRO_JSON:
            return kind, poll_in_avro_json(poll)
        said: dict[str, object] = {"limit": poll.limit, "inclusive": poll.inclusive}
        if start is not None:
            said["start"] = start.hex() if isinstance(start, bytes) else start
        if snapshot is not None:
            said["snapshot"] = transaction.encode_snapshot(snapshot)
        return kind, json.dumps(said).encode()

    def _with_snapshot(self) -> tuple[str, bytes]:
        said = {"snapshot": transaction.encode_snapshot(self.snapshot())}
        return JSON, json.dumps(said).encode()

    def _properties(self) -> tuple[str, bytes]:
        rng = self._rng
        said: dict[str, object] = {}
        if rng.random() < 0.5:
            said["ttl"] = str(rng.choice((600, 600, 600, self.number())))
        if rng.random() < 0.2:
            said["transactions"] = rng.choice(("optional", "optional", "required", "refused", "x"))
        if rng.random() < 0.3:
            said[rng.choice(ODD_TEXTS)] = rng.choice(("v", self.number(), None, ["x"]))
        return JSON, json.dumps(said).encode() if said else b""

    def _stages(self) -> tuple[str, bytes]:
        said = {"stages": [str(self.number()) for _ in range(self._rng.randrange(4))]}
        return JSON, json.dumps(said).encode()

    def _pin(self) -> tuple[str, bytes]:
        return JSON, json.dumps({"node": self.number()}).encode()


def odd_bytes(rng: random.Random) -> bytes:
    """Draw a number's bytes that a decoder may take for a wrong length or count."""
    number = rng.choice(ODD_NUMBERS) & (2**64 - 1)
    zigzag = bytearray()
    rest = number
    while rest > 0x7F:
        zigzag.append(rest & 0x7F | 0x80)
        rest >>= 7
    zigzag.append(rest)
    return rng.choice((bytes(zigzag), struct.pack(">Q", number), struct.pack(">I", number % 2**32)))
