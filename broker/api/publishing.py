"""Publish, store and rollback."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.api.bodies import BodyType, body_type
from broker.api.replies import AVRO, EMPTY, EMPTY_REPLAYED, JSON, Answer, Reply
from broker.api.request import Request, whole_number
from broker.errors import BadRequest
from broker.model import PublishRequest, RollbackRange, check_key, check_producer
from broker.topics.service import Topics
from broker.topics.settings import Producer, Published, PublishOptions
from broker.wire import avro, avrojson, messages
from broker.wire.topics import TTL_MAX_S

IDEMPOTENCY_KEY = "Idempotency-Key"
PRODUCER_ID = "Producer-Id"
PRODUCER_NUMBER = "Producer-Number"
NUMBER_MAX = (1 << 63) - 1
NODE_KEY = "\0"
"""What keys that nodes make begin with; no key of a client does."""


class Publishing:
    """The handlers that write messages."""

    def __init__(self, topics: Topics, *, messages_max: int) -> None:
        """Keep the service; ``messages_max`` bounds one request."""
        self._topics = topics
        self._messages_max = messages_max

    async def publish(self, request: Request) -> Answer:
        """Append messages, or the reference to what a transaction stored."""
        headers = request.headers
        if headers.get("Content-Type") == AVRO:
            wanted = avro.decode_publish_request(request.body, messages_max=self._messages_max)
            as_json = False
        else:
            wanted, as_json = decoded(request, raw=True, messages_max=self._messages_max)
        options = options_of(request, numbered=True)
        published = await self._topics.publish(request.topic, wanted, options)
        if published.pointer is None:
            return EMPTY_REPLAYED if published.replayed else EMPTY
        return publish_reply(published, as_json=as_json)

    async def store(self, request: Request) -> Answer:
        """Put messages of a transaction aside; a later publish of a reference shows them."""
        wanted, _ = decoded(request, raw=False, messages_max=self._messages_max)
        stored = await self._topics.store(request.topic, wanted, options_of(request))
        return EMPTY_REPLAYED if stored.replayed else EMPTY

    async def rollback(self, request: Request) -> Answer:
        """Take back what one transactional publish showed."""
        media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        decode: Callable[[bytes], RollbackRange] = (
            avrojson.decode_publish_response if media_type == JSON else avro.decode_publish_response
        )
        await self._topics.rollback(request.topic, decode(request.body), options_of(request))
        return EMPTY


def decoded(request: Request, *, raw: bool, messages_max: int) -> tuple[PublishRequest, bool]:
    """Return what a request's body asks for, and whether it is JSON. Raises BadRequest."""
    match body_type(request.headers, raw=raw, writes=True):
        case BodyType.RAW:
            return PublishRequest(None, [request.body]), False
        case BodyType.JSON:
            decode = avrojson.decode_publish_request
            return decode(request.body, messages_max=messages_max), True
        case BodyType.AVRO:
            decode = avro.decode_publish_request
            return decode(request.body, messages_max=messages_max), False
        case BodyType.MESSAGES:
            decode = messages.decode_publish_request
            return decode(request.body, messages_max=messages_max), False


def options_of(request: Request, *, numbered: bool = False) -> PublishOptions:
    """Return what a request says beside its messages.

    ``numbered``: it may have a producer's number. Raises BadRequest.
    """
    key = request.headers.get(IDEMPOTENCY_KEY)
    producer = _producer(request.headers)
    if producer is not None and not numbered:
        raise BadRequest(f"{PRODUCER_ID} and {PRODUCER_NUMBER} belong to a publish alone.")
    repeat = request.repeat
    if key is None and not request.query_string and repeat is None:
        return PublishOptions(deadline=request.deadline, producer=producer)
    if key is not None:
        check_key(key)
    ttl_s = whole_number(request.query, "ttl", least=1, most=TTL_MAX_S, default=0)
    if repeat is None:
        return PublishOptions(
            ttl_s=ttl_s or None, key=key, deadline=request.deadline, producer=producer
        )
    return PublishOptions(
        ttl_s=ttl_s or None,
        key=key if repeat.key is None else NODE_KEY + repeat.key,
        deadline=request.deadline,
        is_fresh=repeat.is_fresh,
        epoch=repeat.epoch,
        producer=producer,
    )


def _producer(headers: Mapping[str, str]) -> Producer | None:
    identifier, text = headers.get(PRODUCER_ID), headers.get(PRODUCER_NUMBER)
    if identifier is None and text is None:
        return None
    if identifier is None or text is None:
        raise BadRequest(f"{PRODUCER_ID} and {PRODUCER_NUMBER} come together, or not at all.")
    is_number = text.isascii() and text.isdecimal() and len(text) <= 19
    number = int(text) if is_number else -1
    if not 0 <= number <= NUMBER_MAX:
        raise BadRequest(f"{PRODUCER_NUMBER} is a whole number from 0 to 2^63-1, not {text!r:.80}.")
    return Producer(check_producer(identifier), number)


def publish_reply(published: Published, *, as_json: bool) -> Reply:
    """Return what a rollback of a transactional publish needs."""
    assert published.pointer is not None, "only a transactional publish tells its rows"
    rows = RollbackRange(published.pointer, published.first, published.last)
    headers = EMPTY_REPLAYED.headers if published.replayed else ()
    if as_json:
        return Reply(200, avrojson.encode_publish_response(rows), JSON, headers)
    return Reply(200, avro.encode_publish_response(rows), AVRO, headers)
