"""Handlers of publish, store and rollback, and of stages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Final

from broker.api import asked
from broker.api.asked import body_type, shown_id
from broker.api.messages import plainjson
from broker.api.router import TopicHandlers
from broker.errors import BadRequest, TooManyMessages
from broker.http.budget import BudgetKind, Usage
from broker.http.reply import EMPTY, EMPTY_REPLAYED, Answer, Headers, Reply, json_reply, media_type
from broker.http.request import Request
from broker.model import (
    POINTER_MAX,
    PublishRequest,
    RollbackRange,
    check_key,
    check_producer,
)
from broker.moments import rfc3339
from broker.operations.media_types import AVRO, AVRO_JSON, JSON, MESSAGES, TEXT
from broker.operations.operation import whole_number
from broker.operations.parameters import (
    COUNT,
    FIRST_ID,
    KEY,
    LAST_ID,
    PRODUCER_ID,
    PRODUCER_NUMBER,
    TTL,
)
from broker.operations.replies import Stage
from broker.operations.sent import StagesSent
from broker.places import GENERATION_HEADER
from broker.topics.settings import Producer, PublishedIds, PublishOptions
from broker.topics.stages import began_ms
from broker.wire import avro, avrojson, messages
from broker.wire.jsontext import read_long

FEW_MAX = 2_000
FEW_BYTES_MAX = 1024 * 1024
"""So many messages in Avro, of so many bytes in all, are decoded at once, in 1 ms."""
LIST_BYTES_MAX: Final = 256 * 1024
"""The largest body with a list of stages."""
NODE_KEY = "\0"
"""The first character of the idempotency keys that nodes make. No key of a client can begin with it."""


class Publishing(TopicHandlers):
    """The handlers that write messages, and those of stages.

    In stages several writers store messages, each in its own stage. One publish shows them together.
    """

    async def publish(self, request: Request) -> Answer:
        """Append messages, or the reference to the messages that a transaction stored."""
        wanted, kind = await decoded(request, raw=True, messages_max=self._messages_max)
        options = options_of(request, numbered=True)
        if wanted.pointer is not None:
            await self._parts.check_pointer(wanted.pointer, request.deadline)
        return publish_reply(await self._topics.publish(request.topic, wanted, options), kind)

    async def store(self, request: Request) -> Answer:
        """Store messages of a transaction. A later publish of a reference shows them."""
        wanted, _ = await decoded(request, raw=False, messages_max=self._messages_max)
        if wanted.pointer is not None:
            await self._parts.check_pointer(wanted.pointer, request.deadline)
        stored = await self._topics.store(request.topic, wanted, options_of(request))
        return stored_reply(stored)

    async def rollback(self, request: Request) -> Answer:
        """Take back the messages of one transactional publish."""
        decode = _ROLLBACKS.get(media_type(request.headers), avro.decode_publish_response)
        await self._topics.rollback(request.topic, decode(request.body), options_of(request))
        return EMPTY

    async def begin_stage(self, request: Request) -> Answer:
        """Answer a new stage."""
        life_s = self._topics.around.settings.stage_life_s
        if self._parts.meter is not None:
            self._parts.meter.begin_stage(request.principal, request.topic, life_s)
        stage = await self._topics.begin_stage(request.topic, options_of(request))
        ends_ms = began_ms(stage) + life_s * 1000
        return json_reply(Stage(stage=str(-stage), ends_at=rfc3339(ends_ms)))

    async def store_staged(self, request: Request) -> Answer:
        """Store messages in a stage. They keep the order of their stores."""
        wanted, _ = await decoded(request, raw=True, messages_max=self._messages_max)
        if wanted.pointer is not None:
            raise BadRequest("A stage has no write pointer. Give it when the stages are published.")
        if not wanted.payloads:
            raise BadRequest("Messages are missing: a store needs at least one.")
        wanted = wanted._replace(stages=(_stage(request.names.stage),))
        stored = await self._topics.store(request.topic, wanted, options_of(request))
        return stored_reply(stored)

    async def publish_stages(self, request: Request) -> Answer:
        """Publish stages atomically, in the order of the list."""
        wanted = _list_of_stages(request.body)
        options = options_of(request, numbered=True)
        if wanted.pointer is not None:
            await self._parts.check_pointer(wanted.pointer, request.deadline)
        published = await self._topics.publish(request.topic, wanted, options)
        wants_avro = request.headers.get("Accept") == AVRO
        return publish_reply(published, AVRO if wants_avro else JSON)

    @cached_property
    def _messages_max(self) -> int:
        return self._parts.config.limits.messages_per_request_max


_ROLLBACKS = {JSON: plainjson.decode_rollback, AVRO_JSON: avrojson.decode_publish_response}
"""The decoder of a rollback, by content type. Any other body is read as Avro, as in the original."""
_STORES = {
    AVRO: avro.decode_publish_request,
    MESSAGES: messages.decode_publish_request,
    AVRO_JSON: avrojson.decode_publish_request,
    JSON: plainjson.decode_publish_request,
}
_TAKES = {*_STORES, TEXT}


async def decoded(request: Request, *, raw: bool, messages_max: int) -> tuple[PublishRequest, str]:
    """Decode a request's body, and return its type with it. With ``raw``, the body may be one message as raw bytes.

    Raises:
        BadRequest, BodyTooLarge, TooManyMessages: the body can't be read.
        BrokerError: the budget has no room for so many messages.
    """
    body = request.body
    if request.headers.get("Content-Type") == AVRO and len(body) <= asked.UNCOUNTED_BYTES_MAX:
        return avro.decode_publish_request(body, messages_max=messages_max), AVRO
    kind = body_type(request.headers, _TAKES if raw else _STORES)
    if kind == TEXT:
        return PublishRequest(None, [body]), kind
    if len(body) > asked.UNCOUNTED_BYTES_MAX:
        # The messages, with their keys and headers, are copies of parts of the body, and live as long as the request.
        request.usage.take(BudgetKind.BODY_BYTES, len(body))
    if kind == AVRO and len(body) <= FEW_BYTES_MAX:
        found = _decoded_few(body, min(messages_max, FEW_MAX), request.usage)
        if found is not None:
            return found, kind
    decode = partial(_STORES[kind], messages_max=messages_max)
    return await asked.read(request, decode), kind


def _decoded_few(body: bytes, messages_max: int, usage: Usage) -> PublishRequest | None:
    """Decode a body at once: to pass it to a thread would take longer. Return None if it has more messages."""
    try:
        return avro.decode_publish_request(
            body, messages_max=messages_max, take=partial(usage.take, BudgetKind.ITEMS)
        )
    except TooManyMessages:
        usage.give(BudgetKind.ITEMS)
        return None


def options_of(request: Request, *, numbered: bool = False) -> PublishOptions:
    """Return the options in a request's headers and query. Raises BadRequest.

    With ``numbered``, the request may have a producer's number.
    """
    key = request.headers.get(KEY.name)
    producer = _producer(request.headers)
    if producer is not None and not numbered:
        raise BadRequest(f"{PRODUCER_ID} and {PRODUCER_NUMBER} are allowed only in a publish.")
    options = PublishOptions(
        deadline=request.deadline,
        producer=producer,
        generation=request.generation,
        caller=request.usage.caller,
    )
    repeat = request.repeat
    if key is None and not request.query_string and repeat is None:
        return options
    if key is not None:
        check_key(key)
    options = options._replace(ttl_s=TTL.of(request.query), key=key)
    if repeat is None:
        return options
    return options._replace(
        key=key if repeat.key is None else NODE_KEY + repeat.key,
        is_fresh=repeat.is_fresh,
        epoch=repeat.epoch,
    )


def _producer(headers: Mapping[str, str]) -> Producer | None:
    identifier, text = headers.get(PRODUCER_ID), headers.get(PRODUCER_NUMBER)
    if identifier is None and text is None:
        return None
    if identifier is None or text is None:
        raise BadRequest(f"{PRODUCER_ID} and {PRODUCER_NUMBER} must come together.")
    if not 0 <= (number := whole_number(text)) <= POINTER_MAX:
        raise BadRequest(
            f"{PRODUCER_NUMBER} must be a whole number from 0 to 2^63-1, not {text!r:.80}."
        )
    return Producer(check_producer(identifier), number)


def publish_reply(published: PublishedIds, kind: str) -> Reply:
    """Return the answer of a publish: the ids and the count in headers, and a body in the request's type.

    The body in Avro is that of the original: empty, or in a transaction the body of its rollback.
    """
    headers = _result_headers(published)
    if kind in (JSON, TEXT):
        return Reply(200, plainjson.encode_published(published), JSON, headers)
    if published.pointer is None or not published.is_known:
        return Reply(headers=headers)
    rows = RollbackRange(published.pointer, published.first, published.last)
    if kind == AVRO_JSON:
        return Reply(200, avrojson.encode_publish_response(rows), AVRO_JSON, headers)
    return Reply(200, avro.encode_publish_response(rows), AVRO, headers)


def stored_reply(stored: PublishedIds) -> Reply:
    """Return the answer of a store: empty, with the generation in which the messages are."""
    before = EMPTY_REPLAYED if stored.replayed else EMPTY
    return before.with_headers((GENERATION_HEADER, str(stored.generation)))


def _result_headers(published: PublishedIds) -> Headers:
    """Return the headers with the ids and the count of a publish, as far as they are known."""
    told: Headers = ((GENERATION_HEADER, str(published.generation)),)
    if published.is_known:
        first, last = shown_id(published.first), shown_id(published.last)
        told = (*told, (FIRST_ID, first), (LAST_ID, last))
    if published.messages is not None:
        told = (*told, (COUNT, str(published.messages)))
    return (*EMPTY_REPLAYED.headers, *told) if published.replayed else told


def _stage(text: object) -> int:
    if isinstance(text, str) and 0 < (number := whole_number(text)) <= POINTER_MAX:
        return -number
    raise BadRequest(
        f"A stage must be the number that the broker gave, as a string, not {text!r:.80}."
    )


def _list_of_stages(body: bytes) -> PublishRequest:
    sent: StagesSent = asked.read_small(body, StagesSent, bytes_max=LIST_BYTES_MAX)
    pointer = sent.get("write_pointer")
    if pointer is not None:
        pointer = read_long("write_pointer", pointer)
    stages = [_stage(each) for each in sent["stages"]]
    if len(set(stages)) < len(stages):
        raise BadRequest("stages: the list has a stage twice.")
    return PublishRequest(pointer, (), stages)
