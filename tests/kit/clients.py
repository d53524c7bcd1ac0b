"""Clients of one simulated node: each tells the history what it asked and what it was told."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from itertools import count
from typing import Any

from broker.errors import BrokerError
from broker.model import (
    ROW_ID_MIN,
    Message,
    Poll,
    PublishRequest,
    RollbackRange,
    RowId,
    Snapshot,
    TopicId,
)
from broker.testing.virtual_time import VirtualLoop
from broker.topics.settings import NO_OPTIONS, PublishOptions
from broker.wire import attributes, avro, messages
from chaos.history import History
from chaos.workloads.beside import beside, others
from tests.kit.mortal import NodeDied
from tests.kit.node import Answered, WholeNode

LOG = TopicId("default", "log")
AVRO = {"Content-Type": avro.CONTENT_TYPE}
POLL = {**AVRO, "Accept": messages.CONTENT_TYPE}
WHOLE = {"Content-Type": messages.CONTENT_TYPE}
TRIES = 20


def path_of(topic: TopicId, action: str = "") -> str:
    """Return the path of a topic, or of one of its actions."""
    path = f"/v1/namespaces/{topic.namespace}/topics/{topic.topic}"
    return f"{path}/{action}" if action else path


class Clients:
    """What clients of the topic LOG do, one request at a time under each name."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, node: WholeNode) -> None:
        """Ask ``node``; what is asked is up to ``chance``."""
        self.loop = loop
        self.chance = chance
        self.node = node
        self.history = History(lambda: int(loop.time() * 1e9))
        self.transactions: list[RollbackRange] = []
        self.commits: list[tuple[float, RowId]] = []
        """When these clients learned of a commit to the log, and its last row."""
        self._numbers = count(1)

    async def pause(self, mean_ms: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(self.chance.expovariate(1 / mean_ms) / 1000)

    def payloads(self, name: str) -> list[str]:
        """Return some payloads, each the only one of its kind."""
        number = next(self._numbers)
        return [f"{name}.{number}.{place}" for place in range(self.chance.randint(1, 4))]

    async def publish(
        self, name: str, payloads: list[str], options: PublishOptions, pointer: int | None = None
    ) -> str:
        """Publish; the outcome is as the history has it."""
        asked = {"payloads": payloads, "pointer": pointer, "key": options.key, "generation": 1}
        ending = self.history.invoke(name, "publish", str(LOG), asked)
        request = request_of(pointer, payloads)
        if options.key is None and self.chance.random() < 0.3:
            options = PublishOptions(deadline=self.loop.time() + 5)
        topics = self.node.topics

        async def publish() -> Any:
            return await topics.publish(LOG, request, options)

        try:
            done = await self.node.run(publish())
        except NodeDied:
            ending.unknown("the node died")
            return "unknown"
        except BrokerError as error:
            (ending.fail if error.outcome == "refused" else ending.unknown)(repr(error))
            return "fail" if error.outcome == "refused" else "unknown"
        self.commits.append((self.loop.time(), done.last))
        if pointer is not None:
            self.transactions.append(RollbackRange(pointer, done.first, done.last))
        ending.ok({"last": _wide(done.last), "replayed": done.replayed}, _wide(done.first))
        return "ok"

    async def keyed(self, name: str) -> None:
        """Publish under a key until it is answered, and once more."""
        options = PublishOptions(key=f"{name}-{next(self._numbers)}")
        payloads = self.payloads(name)
        for _ in range(TRIES):
            if await self.publish(name, payloads, options) == "ok":
                break
            await self.pause(20)
        if self.chance.random() < 0.5:
            await self.publish(name, payloads, options)

    async def transactional(self, name: str) -> None:
        """Publish in a transaction of its own."""
        await self.publish(name, self.payloads(name), NO_OPTIONS, next(self._numbers))

    async def roll_back(self, name: str) -> None:
        """Roll a transaction back through the handler, until that is done."""
        if not self.transactions:
            return
        back = self.transactions.pop(self.chance.randrange(len(self.transactions)))
        asked = {"pointer": back.pointer, "first": _wide(back.first), "last": _wide(back.last)}
        for _ in range(TRIES):
            ending = self.history.invoke(name, "rollback", str(LOG), {**asked, "generation": 1})
            body = avro.encode_publish_response(back)
            answer = await self.call("POST", path_of(LOG, "rollback"), body)
            if answer.outcome == "ok":
                ending.ok({})
                return
            (ending.fail if answer.outcome == "fail" else ending.unknown)(str(answer.status))
            await self.pause(20)

    async def store_and_refer(self, name: str) -> None:
        """Store payloads of a transaction and publish their reference, until that is done."""
        number = next(self._numbers)
        stored: list[str] = []
        for _ in range(self.chance.randint(0, 3)):
            payloads = [f"s{number}:{payload}" for payload in self.payloads(name)]
            asked = {"payloads": payloads, "number": number, "generation": 1}
            ending = self.history.invoke(name, "store", str(LOG), asked)
            body = messages.encode_publish_request(request_of(number, payloads))
            answer = await self.call("POST", path_of(LOG, "store"), body, WHOLE)
            if answer.outcome == "ok":
                ending.ok({"last": "0" * 40}, "0" * 40)
                stored += payloads
            else:
                (ending.fail if answer.outcome == "fail" else ending.unknown)(str(answer.status))
        body = avro.encode_publish_request(PublishRequest(number, []))
        for _ in range(TRIES):
            asked = {"number": number, "generation": 1}
            ending = self.history.invoke(name, "reference", str(LOG), asked)
            answer = await self.call("POST", path_of(LOG, "publish"), body)
            if answer.outcome == "ok":
                rows = avro.decode_publish_response(answer.body)
                ending.ok({"last": _wide(rows.last)}, _wide(rows.first))
                return
            (ending.fail if answer.outcome == "fail" else ending.unknown)(str(answer.status))
            await self.pause(20)

    async def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] = AVRO
    ) -> Answered:
        """Ask the node; a node that dies gives an answer that is cut."""
        try:
            return await self.node.call(method, path, body, headers)
        except NodeDied:
            return Answered(0, _NO_HEADERS, b"", is_cut=True)

    # Consumers.

    async def poll(self, topic: TopicId, poll: Poll, wait_s: float = 0.0) -> list[Message] | None:
        """Return the messages of a whole reply; None if there was none."""
        path = path_of(topic, "poll") + (f"?wait={wait_s}" if wait_s else "")
        answer = await self.call("POST", path, avro.encode_poll(poll), POLL)
        if answer.outcome != "ok":
            return None
        decoder = messages.PagesDecoder()
        found = decoder.feed(answer.body)
        decoder.finish()
        return found

    async def read(
        self, cursor: str, start: bytes | None, limit: int | None, wait_s: float = 0.0
    ) -> list[Message] | None:
        """Poll the log from a cursor's place, and tell the history."""
        after = "0" * 40 if start is None else start.hex()
        asked = {"after": after, "through": "f" * 40, "cursor": cursor, "generation": 1}
        ending = self.history.invoke(cursor, "read", str(LOG), asked)
        found = await self.poll(LOG, Poll(start, inclusive=False, limit=limit), wait_s)
        if found is None:
            ending.fail("no whole reply")
            return None
        last = found[-1].id.hex() if found else after
        rows = [
            [message.id.hex(), label, None, *others(label, message.key, message.headers)]
            for message in found
            if message.id[10:] == ROW_ID_MIN
            for label in [message.payload.decode()]
        ]
        ending.ok({"rows": rows, "seen": last, "floor": "", "pointer": last})
        return found

    async def browse(self, name: str) -> list[dict[str, Any]] | None:
        """Return all entries of the log; None if the node did not say."""
        asked = {"after": "0" * 40, "through": "f" * 40, "generation": 1}
        ending = self.history.invoke(name, "read", str(LOG), asked)
        path = path_of(LOG, "messages") + "?limit=10000&payload=full"
        try:
            answer = await self.node.call("GET", path)
        except NodeDied:
            ending.fail("the node died")
            return None
        if answer.outcome != "ok":
            ending.fail(str(answer.status))
            return None
        entries: list[dict[str, Any]] = json.loads(answer.body)["messages"]
        rows = [
            [entry["id"], entry["payload"], pointer_of(entry), *_others_of(entry)]
            for entry in entries
            if entry["kind"] == "inline"
        ]
        last = entries[-1]["id"] if entries else "0" * 40
        ending.ok({"rows": rows, "seen": last, "floor": "", "pointer": last})
        self.note_payloads(name, entries)
        return entries

    def note_payloads(self, name: str, entries: list[dict[str, Any]]) -> None:
        """Write what each reference shows, as a read of its payload log."""
        for reference in entries:
            if reference["kind"] != "reference":
                continue
            number = reference["write_pointer"]
            row = reference["id"][:20]
            shown = [
                [entry["id"], entry["payload"]]
                for entry in entries
                if entry["kind"] == "stored" and entry["id"].startswith(row)
            ]
            asked = {"number": number, "generation": 1}
            ending = self.history.invoke(f"{name} payloads", "payloads", str(LOG), asked)
            ending.ok({"rows": shown})


def request_of(pointer: int | None, labels: Sequence[str]) -> PublishRequest:
    """Return a request with a message for each label."""
    encoded = [attributes.encode(*beside(label)) for label in labels]
    payloads = [label.encode() for label in labels]
    return PublishRequest(pointer, payloads, attributes=encoded if any(encoded) else ())


def _others_of(entry: dict[str, Any]) -> list[str]:
    """Return the key and headers of a browse's entry, if it was published with others."""
    key = None if entry["key"] is None else entry["key"].encode()
    headers = {name: value.encode() for name, value in entry["headers"].items()}
    return others(entry["payload"], key, headers)


def pointer_of(entry: dict[str, Any]) -> int | None:
    """Return the pointer of a browse's entry, negative if it was rolled back."""
    pointer: int | None = entry["write_pointer"]
    if pointer is not None and entry["tx_state"] == "rolled_back":
        return -pointer
    return pointer


def consumable(entries: list[dict[str, Any]], snapshot: Snapshot | None) -> list[tuple[str, str]]:
    """Return (id, payload) of what a consumer receives, by the entries of a browse."""
    found = []
    for entry in entries:
        pointer = pointer_of(entry)
        if snapshot is not None and pointer is not None:
            if pointer < 0 or snapshot.is_invalid(pointer):
                continue
            if not snapshot.is_visible(pointer):
                break
        if entry["kind"] != "reference":
            found.append((entry["id"], entry["payload"]))
    return found


def _wide(row: RowId) -> str:
    """Return a row's id as a message's, so that all ids of the history have one width."""
    return (row + ROW_ID_MIN).hex()


_NO_HEADERS: Any = {}
