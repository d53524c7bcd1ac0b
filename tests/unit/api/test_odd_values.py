"""Each field of each JSON body gets values of wrong types and sizes: no answer has an unknown outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from tests.kit.serving import Broker, topic_path

JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}
NUMBERS: Final = [0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, 1e308]
TEXTS: Final = ["", "x", "\ud800", "\x00", "0" * 40, "f" * 40]
LISTS: Final = [[], [1], ["x"], [None], [[]], [2**64], ["\ud800"]]
ODD: Final = [None, True, *NUMBERS, *TEXTS, *LISTS, {}, {"a": 1}]
SNAPSHOT: Final = {"transaction_id": 9, "read_pointer": 9}


class Body(NamedTuple):
    """A request whose fields get odd values, each alone. ``valid`` has valid values of some fields."""

    method: str
    path: str
    fields: str
    valid: dict[str, Any]

    def odd(self) -> Iterator[dict[str, Any]]:
        """Yield bodies in which one field is odd."""
        for field in self.fields.split():
            for value in ODD:
                yield {**self.valid, field: value}


SNAPSHOT_FIELDS: Final = (
    "transaction_id read_pointer write_pointer first_short_in_progress invalids in_progress checkpoint_pointers long "
    "visibility"
)
ENDS: Final = {"first_id": "0" * 40, "last_id": "0" * 40}
OF_TOPIC: Final = "/v1/namespaces/default/topics/t"
BODIES: Final = [
    Body("PUT", f"{OF_TOPIC}/properties", "ttl transactions generation purged_ms x", {}),
    Body("POST", f"{OF_TOPIC}/publish", "messages write_pointer", {"messages": ["a"]}),
    Body("POST", f"{OF_TOPIC}/store", "messages write_pointer", {"messages": ["a"]}),
    Body("POST", f"{OF_TOPIC}/rollback", "write_pointer first_id last_id count replayed", ENDS),
    Body("POST", f"{OF_TOPIC}/poll", "start inclusive limit snapshot", {}),
    Body("POST", f"{OF_TOPIC}/messages", "snapshot", {}),
    Body("POST", f"{OF_TOPIC}/blockers", "snapshot", {}),
    Body("PUT", f"{OF_TOPIC}/cursors/c", "after expected data", {"after": None, "expected": None}),
    Body("POST", "/v1/transactions", "type timeout_s client", {}),
    Body("POST", "/v1/transactions/1/can-commit", "changes", {}),
    Body("POST", "/v1/transactions/1/commit", "write_pointer", {}),
    Body("POST", "/v1/transactions/truncate", "ids", {}),
    Body("POST", "/v1/transactions/truncate", "before_ms", {}),
]


async def has_certain_outcome(broker: Broker, method: str, path: str, sent: object) -> None:
    reply = await broker.call(method, path, json.dumps(sent).encode(), JSON)
    outcome = reply.headers.get("Broker-Outcome", "done")
    assert (reply.status < 500, outcome != "unknown") == (True, True), (path, sent, reply)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.path} {body.fields}")
async def test_an_odd_value_of_a_field_is_read_or_refused(broker: Broker, body: Body) -> None:
    for sent in body.odd():
        await has_certain_outcome(broker, body.method, body.path, sent)


async def test_an_odd_part_of_a_message_is_read_or_refused(broker: Broker) -> None:
    message = Body("POST", topic_path("t", "publish"), "value key headers ttl base64", {})
    for sent in message.odd():
        await has_certain_outcome(broker, message.method, message.path, {"messages": [sent]})
    for value in ODD:
        with_header = {"value": "a", "headers": {"h": value}}
        await has_certain_outcome(broker, "POST", message.path, {"messages": [with_header]})


async def test_an_odd_part_of_a_snapshot_is_read_or_refused(broker: Broker) -> None:
    snapshot = Body("POST", topic_path("t", "poll"), SNAPSHOT_FIELDS, SNAPSHOT)
    for sent in snapshot.odd():
        await has_certain_outcome(broker, "POST", snapshot.path, {"snapshot": sent})


async def test_an_odd_part_of_a_publish_of_stages_is_read_or_refused(broker: Broker) -> None:
    path = topic_path("t", "stages")
    stage = (await broker.call("POST", path, b"", JSON)).json["stage"]
    stored = await broker.call(
        "POST", f"{path}/{stage}/store", b"x", {"Content-Type": "text/plain"}
    )
    assert stored.status == 200
    publish = Body("POST", f"{path}/publish", "write_pointer stages", {"stages": [stage]})
    for sent in publish.odd():
        await has_certain_outcome(broker, "POST", publish.path, sent)
