"""Build requests to the broker and read its answers, as values: no I/O, no clock, no state.

This module and ``outcomes`` have all that the client knows of the HTTP interface beside the table of operations; the transports
send any request without looking into it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from broker.client.client_request import ClientRequest, Reply, json_object, request_for
from broker.client.node_directory import HEADER, Leader, leader_of, number_of
from broker.client.positions import generation_in, id_of, start_of
from broker.client.values import (
    Browsed,
    BrowsePage,
    IdPlace,
    Producer,
    Published,
    Start,
    TopicInfo,
    TopicName,
    TopicRange,
)
from broker.errors import BadRequest
from broker.model import (
    NO_HEADERS,
    Message,
    MessageId,
    Poll,
    PublishRequest,
    Snapshot,
    TopicId,
    check_key,
    check_namespace,
    check_producer,
    check_topic,
    message_id_from_hex,
)
from broker.operations.media_types import AVRO, MESSAGES, THRIFT
from broker.operations.parameters import (
    COMMITTED,
    COUNT,
    FIRST_ID,
    KEY,
    LAST_ID,
    PRODUCER_ID,
    PRODUCER_NUMBER,
    REPLAYED_HEADER,
    TTL,
    WAIT,
)
from broker.places import GENERATION_HEADER, Place
from broker.wire import avro, messages
from broker.wire.jsontext import json_of
from broker.wire.transaction import encode_transaction

_FIRST_ID, _LAST_ID, _COUNT, _REPLAYED = (
    name.lower() for name in (FIRST_ID, LAST_ID, COUNT, REPLAYED_HEADER)
)
_GENERATION = GENERATION_HEADER.lower()


# --- Names and values of callers -----------------------------------------------------------------


def topic_id(name: TopicName, namespace: str) -> TopicId:
    """Return the id of a topic that a caller names. Raises BadName."""
    if isinstance(name, str):
        first, slash, rest = name.partition("/")
        return check_topic(first, rest) if slash else check_topic(namespace, first)
    return check_topic(*name)


def _in(generation: int | None) -> dict[str, str]:
    """Return the header with which the broker refuses a request if the topic has another generation."""
    return {} if generation is None else {GENERATION_HEADER: str(generation)}


def generation(headers: Mapping[str, str]) -> int | None:
    """Return the generation of the topic that a reply names; None: it names none."""
    return number_of(headers.get(_GENERATION))


# --- Topics --------------------------------------------------------------------------------------


def create_topic(topic: TopicId, properties: Mapping[str, str]) -> ClientRequest:
    """Ask for a new topic."""
    return request_for("create_topic", topic, sent=dict(properties))


def set_properties(topic: TopicId, properties: Mapping[str, str]) -> ClientRequest:
    """Replace all properties of a topic. The client repeats it: the last caller's properties stay."""
    return request_for("update_topic", topic, sent=dict(properties), repeatable=True)


def delete_topic(topic: TopicId) -> ClientRequest:
    """Ask for a topic's deletion."""
    return request_for("delete_topic", topic)


def show_topic(topic: TopicId) -> ClientRequest:
    """Ask for a topic's properties."""
    return request_for("show_topic", topic)


def list_topics(namespace: str) -> ClientRequest:
    """Ask for the names of a namespace's topics. Raises BadName."""
    return request_for("list_topics", namespace=check_namespace(namespace))


def purge(topic: TopicId, before: datetime | int | Literal["now"]) -> ClientRequest:
    """Ask to remove the messages published before a moment.

    The request is repeatable, except with ``now``: a later ``now`` is another moment.

    Raises:
        BadRequest, TypeError: ``before`` is not a moment.
    """
    query = {"before": _purge_moment(before)}
    return request_for("purge", topic, query=query, repeatable=before != "now")


def _purge_moment(before: Start) -> str:
    """Return the moment of a purge in the form of the query. Only an explicit moment is accepted, not an id or None."""
    if before == "now":
        return "now"
    moment = start_of(before, "before")
    if not isinstance(moment, int):
        raise BadRequest(
            "before: give a datetime with a time zone, ms since 1970, or 'now' for all that is stored."
        )
    return str(moment)


def purged_ms(reply: Reply) -> int:
    """Read the answer to ``purge``."""
    return int(json_object(reply)["purged_ms"])


def topic_info(topic: TopicId, reply: Reply) -> TopicInfo:
    """Read the answer to ``show_topic``."""
    properties = json_object(reply)
    generation, ttl_s = int(properties["generation"]), int(properties["ttl"])
    return TopicInfo(topic, generation, ttl_s, properties)


def names(reply: Reply) -> list[str]:
    """Read the answer to ``list_topics`` and to ``list_namespaces``."""
    listed = json_of(reply.body)
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError("no list of names")
    return listed


# --- Publishing ----------------------------------------------------------------------------------


def _write(
    name: str,
    topic: TopicId,
    wanted: PublishRequest,
    ttl_s: int | None,
    once: Mapping[str, str],
    generation: int | None = None,
    **names: str,
) -> ClientRequest:
    # Use the format of the original, unless the request has parts that the original does not know.
    form = messages if wanted.attributes or wanted.ttls_s else avro
    return request_for(
        name,
        topic,
        query=None if ttl_s is None else {TTL.name: ttl_s},
        headers={"Content-Type": form.CONTENT_TYPE, **once, **_in(generation)},
        body=form.encode_publish_request(wanted),
        repeatable=bool(once),
        **names,
    )


def _once(key: str | None, producer: Producer | None = None) -> dict[str, str]:
    """Return the headers that make a write repeatable. Raises BadRequest."""
    headers = {}
    if key is not None:
        headers[KEY.name] = check_key(key)
    if producer is not None:
        identifier, number = producer
        if not 0 <= number < 1 << 63:
            raise BadRequest(f"A producer's number is from 0 to 2^63-1, not {number}.")
        headers[PRODUCER_ID] = check_producer(identifier)
        headers[PRODUCER_NUMBER] = str(number)
    return headers


def publish(
    topic: TopicId,
    wanted: PublishRequest,
    *,
    ttl_s: int | None = None,
    key: str | None = None,
    producer: Producer | None = None,
    generation: int | None = None,
) -> ClientRequest:
    """Publish messages; with a write pointer and no messages, publish the messages stored under it.

    The broker refuses it if the topic has another generation than the given one.
    """
    return _write("publish", topic, wanted, ttl_s, _once(key, producer), generation)


def store(
    topic: TopicId,
    wanted: PublishRequest,
    *,
    ttl_s: int | None = None,
    key: str | None = None,
    generation: int | None = None,
) -> ClientRequest:
    """Store messages under the write pointer of ``wanted``, to be published later by a reference."""
    return _write("store", topic, wanted, ttl_s, _once(key), generation)


def begin_stage(topic: TopicId) -> ClientRequest:
    """Ask for a stage. The request is repeatable: it then makes two stages, and one stays unused."""
    return request_for("begin_stage", topic)


def stage_begun(reply: Reply) -> str:
    """Read the answer to ``begin_stage``."""
    return str(json_object(reply)["stage"])


def store_staged(
    topic: TopicId,
    stage: str,
    wanted: PublishRequest,
    *,
    ttl_s: int | None = None,
    key: str | None = None,
) -> ClientRequest:
    """Store messages into a stage."""
    return _write("store_staged", topic, wanted, ttl_s, _once(key), stage=_stage(stage))


def publish_stages(
    topic: TopicId,
    stages: Sequence[str],
    *,
    pointer: int | None = None,
    ttl_s: int | None = None,
    producer: Producer | None = None,
) -> ClientRequest:
    """Publish stages, in their order, all at once. The request is repeatable."""
    asked: dict[str, Any] = {"stages": [_stage(stage) for stage in stages]}
    if pointer is not None:
        asked["write_pointer"] = str(pointer)
    headers = {"Accept": AVRO, **_once(None, producer)}
    return request_for(
        "publish_stages", topic, query={TTL.name: ttl_s}, headers=headers, sent=asked
    )


def _stage(stage: str) -> str:
    if not (stage.isascii() and stage.isdecimal()):
        raise BadRequest(
            f"A stage is named by its id, which the broker gave, not by {stage!r:.80}."
        )
    return stage


def published(reply: Reply) -> Published:
    """Read the answer to ``publish``."""
    headers = reply.headers
    header, first, last = headers.get(HEADER), headers.get(_FIRST_ID), headers.get(_LAST_ID)
    return Published(
        reply.body or None,
        headers.get(_REPLAYED) == "true",
        None if header is None else _leader(header),
        None if first is None else _id(first),
        None if last is None else _id(last),
        number_of(headers.get(_COUNT)),
        generation(headers),
    )


def _id(text: str) -> MessageId | None:
    # The messages are published even if this header is malformed.
    try:
        return message_id_from_hex(text)
    except BadRequest:
        return None


_leader = lru_cache(maxsize=1024)(leader_of)
"""Cached, because many replies have the same header."""


def rollback(topic: TopicId, rollback_body: bytes) -> ClientRequest:
    """Undo a transactional publish; the body is the broker's answer to it. The request is repeatable."""
    return request_for("rollback", topic, headers={"Content-Type": AVRO}, body=rollback_body)


# --- Reading -------------------------------------------------------------------------------------


def poll(
    topic: TopicId, wanted: Poll, *, wait_s: float | None = None, committed: bool = False
) -> ClientRequest:
    """Ask for messages as a consumer. Raises BadRequest for an endless wait; ValueError for ``committed`` with a snapshot."""
    if wait_s is not None and not 0 <= wait_s < float("inf"):
        raise BadRequest(f"wait_s: give seconds, at least 0, not {wait_s!r}.")
    if committed and wanted.snapshot is not None:
        raise ValueError("Give committed or a snapshot, but not both.")
    return request_for(
        "poll",
        topic,
        query={
            WAIT.name: f"{wait_s:g}" if wait_s else None,
            COMMITTED.name: "true" if committed else None,
        },
        headers={"Content-Type": AVRO, "Accept": MESSAGES, **_in(wanted.generation)},
        body=avro.encode_poll(wanted),
    )


def browse(
    topic: TopicId,
    *,
    bounds: Mapping[str, str],
    snapshot: Snapshot | None = None,
) -> ClientRequest:
    """Ask for messages without consuming them; ``bounds`` are the parameters of the query: from, to and so on."""
    if snapshot is None:
        return request_for("browse", topic, query=bounds)
    return request_for("browse_as", topic, query=bounds, sent=_snapshot(snapshot))


def _snapshot(snapshot: Snapshot) -> dict[str, str]:
    return {"snapshot": encode_transaction(snapshot).hex()}


def browse_bounds(
    start: Start,
    stop: Start,
    limit: int | None,
    *,
    descending: bool,
    full: bool,
) -> dict[str, str]:
    """Return the query parameters of ``browse``. For a missing one, the broker has a default.

    Raises BadRequest, TypeError.
    """
    bounds = {
        "from": place_text(start, "start"),
        "to": place_text(stop, "stop"),
        "limit": None if limit is None else str(limit),
        "order": "desc" if descending else None,
        "payload": "full" if full else None,
    }
    return {name: value for name, value in bounds.items() if value is not None}


def place_text(place: Start, name: str) -> str | None:
    """Return a place in the form of a query. Raises BadRequest, TypeError."""
    found = start_of(place, name)
    if found is None:
        return None
    return str(Place(found, generation_in(place)) if isinstance(found, bytes) else found)


def id_text(identifier: IdPlace, name: str) -> str:
    """Return a message id in the form of a query, with its generation if it names one."""
    return str(Place(id_of(identifier, name), generation_in(identifier)))


def browse_page(reply: Reply) -> BrowsePage:
    """Read the answer to ``browse``."""
    page = json_object(reply)
    return BrowsePage([_browsed(row) for row in page["messages"]], page.get("next"))


def _browsed(row: Mapping[str, Any]) -> Browsed:
    return Browsed(
        id=bytes.fromhex(row["id"]),
        timestamp_ms=row["timestamp_ms"],
        size=row["size"],
        expires_at=row.get("expires_at"),
        kind=row["kind"],
        tx_state=row["tx_state"],
        write_pointer=None if (pointer := row.get("write_pointer")) is None else int(pointer),
        payload=_text_or_base64(row),
        truncated=row.get("truncated", False),
        consumable=row.get("consumable"),
        key=_key(row),
        headers=_headers(row),
    )


def _text_or_base64(row: Mapping[str, Any]) -> bytes | None:
    payload = row.get("payload")
    if payload is None:
        return None
    return base64.b64decode(payload) if row.get("encoding") == "base64" else payload.encode()


def _key(row: Mapping[str, Any]) -> bytes | None:
    key = row.get("key")
    return None if key is None else _bytes_of(key)


def _headers(row: Mapping[str, Any]) -> Mapping[str, bytes]:
    headers = row.get("headers")
    return {name: _bytes_of(value) for name, value in headers.items()} if headers else NO_HEADERS


def _bytes_of(value: str | Mapping[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def blockers(
    topic: TopicId,
    *,
    bounds: Mapping[str, object],
    snapshot: Snapshot | None = None,
) -> ClientRequest:
    """Ask which transactions block a consumer; ``bounds`` are the query parameters transaction, from and limit."""
    if snapshot is None:
        return request_for("blockers", topic, query=bounds)
    headers, body = {"Content-Type": THRIFT}, encode_transaction(snapshot)
    return request_for("blockers", topic, query=bounds, headers=headers, body=body)


def stats(topic: TopicId) -> ClientRequest:
    """Ask for a topic's statistics."""
    return request_for("stats", topic)


def lag(topic: TopicId, after: IdPlace) -> ClientRequest:
    """Ask how many messages were published behind an id. Raises BadRequest, TypeError."""
    return request_for("lag", topic, query={"after": id_text(after, "after")})


def lag_count(reply: Reply) -> int:
    """Read the answer to ``lag``."""
    return int(json_object(reply)["messages"])


def topic_range(
    topic: TopicId,
    *,
    after: IdPlace | None,
    through: IdPlace | None,
    messages: int | None,
    size: int | None,
    parts: int,
) -> ClientRequest:
    """Ask for a range of a topic. Raises BadRequest, TypeError."""
    asked = {
        "after": None if after is None else id_text(after, "after"),
        "through": None if through is None else id_text(through, "through"),
        "messages": messages,
        "bytes": size,
        "parts": parts if parts != 1 else None,
    }
    return request_for("range", topic, query=asked)


def range_found(reply: Reply) -> TopicRange:
    """Read the answer to ``topic_range``."""
    fields = json_object(reply)
    return TopicRange(
        earliest=message_id_from_hex(fields["earliest"]),
        latest=message_id_from_hex(fields["latest"]),
        after=message_id_from_hex(fields["after"]),
        through=message_id_from_hex(fields["through"]),
        messages=fields["messages"],
        size=fields["bytes"],
        lost=fields["lost"],
        ends=[message_id_from_hex(end) for end in fields["ends"]],
        generation=fields.get("generation"),
    )


def arrow(
    topic: TopicId,
    after: MessageId | None,
    through: MessageId,
    snapshot: Snapshot | None = None,
    generation: int | None = None,
) -> ClientRequest:
    """Ask for all messages of a range as record batches."""
    query = {"after": after and after.hex(), "through": through.hex()}
    headers = _in(generation)
    if snapshot is None:
        return request_for("arrow", topic, query=query, headers=headers)
    return request_for("arrow_as", topic, query=query, headers=headers, sent=_snapshot(snapshot))


def named_leader(reply: Reply) -> Leader:
    """Read the answer to ``admin.leader``."""
    found = json_object(reply)
    return Leader(found["url"], found["node"], found["epoch"])


def events(
    topic: TopicId,
    *,
    start: str | None,
    last_event_id: str | None,
    generation: int | None = None,
    committed: bool = False,
) -> ClientRequest:
    """Ask for the topic as server-sent events."""
    headers = _in(generation)
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    asked = {"from": start, COMMITTED.name: "true" if committed else None}
    return request_for("events", topic, query=asked, headers=headers)


def event_message(data: str) -> Message:
    """Read the ``data`` of one event of ``events``."""
    row = json_of(data.encode())
    payload = _text_or_base64(row) or b""
    return Message(bytes.fromhex(row["id"]), payload, _key(row), _headers(row))
