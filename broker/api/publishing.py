"""Publish, store and rollback."""

from __future__ import annotations

from collections.abc import Callable

from broker.api.bodies import BodyType, body_type
from broker.api.replies import AVRO, EMPTY, EMPTY_REPLAYED, JSON, Answer, Reply
from broker.api.request import Request, whole_number
from broker.model import PublishRequest, RollbackRange, check_key
from broker.topics.service import Topics
from broker.topics.settings import Published, PublishOptions
from broker.wire import avro, avrojson
from broker.wire.topics import TTL_MAX_S

IDEMPOTENCY_KEY = "Idempotency-Key"
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
            wanted, as_json = self._decode(request, raw=True)
        published = await self._topics.publish(request.topic, wanted, _options(request))
        if published.pointer is None:
            return EMPTY_REPLAYED if published.replayed else EMPTY
        return _publish_reply(published, as_json=as_json)

    async def store(self, request: Request) -> Answer:
        """Put messages of a transaction aside; a later publish of a reference shows them."""
        wanted, _ = self._decode(request, raw=False)
        stored = await self._topics.store(request.topic, wanted, _options(request))
        return EMPTY_REPLAYED if stored.replayed else EMPTY

    async def rollback(self, request: Request) -> Answer:
        """Take back what one transactional publish showed."""
        media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        decode: Callable[[bytes], RollbackRange] = (
            avrojson.decode_publish_response if media_type == JSON else avro.decode_publish_response
        )
        await self._topics.rollback(request.topic, decode(request.body), _options(request))
        return EMPTY

    def _decode(self, request: Request, *, raw: bool) -> tuple[PublishRequest, bool]:
        match body_type(request.headers, raw=raw):
            case BodyType.RAW:
                return PublishRequest(None, [request.body]), False
            case BodyType.JSON:
                decode = avrojson.decode_publish_request
                return decode(request.body, messages_max=self._messages_max), True
            case BodyType.AVRO:
                decode = avro.decode_publish_request
                return decode(request.body, messages_max=self._messages_max), False


def _options(request: Request) -> PublishOptions:
    key = request.headers.get(IDEMPOTENCY_KEY)
    repeat = request.repeat
    if key is None and not request.query_string and repeat is None:
        return PublishOptions(deadline=request.deadline)
    if key is not None:
        check_key(key)
    ttl_s = whole_number(request.query, "ttl", least=1, most=TTL_MAX_S, default=0)
    if repeat is None:
        return PublishOptions(ttl_s=ttl_s or None, key=key, deadline=request.deadline)
    return PublishOptions(
        ttl_s=ttl_s or None,
        key=key if repeat.key is None else NODE_KEY + repeat.key,
        deadline=request.deadline,
        is_fresh=repeat.is_fresh,
        epoch=repeat.epoch,
    )


def _publish_reply(published: Published, *, as_json: bool) -> Reply:
    assert published.pointer is not None, "only a transactional publish tells its rows"
    rows = RollbackRange(published.pointer, published.first, published.last)
    headers = EMPTY_REPLAYED.headers if published.replayed else ()
    if as_json:
        return Reply(200, avrojson.encode_publish_response(rows), JSON, headers)
    return Reply(200, avro.encode_publish_response(rows), AVRO, headers)
