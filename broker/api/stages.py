"""Handlers of stages: several writers store messages, each in its own stage, and one publish shows them together."""

from __future__ import annotations

from typing import Final

from broker.api import asked
from broker.api.asked import BodyType
from broker.api.publish import (
    CheckPointer,
    any_pointer,
    decoded,
    options_of,
    publish_reply,
    stored_reply,
)
from broker.errors import BadRequest
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import POINTER_MAX, PublishRequest
from broker.moments import rfc3339
from broker.operations.media_types import AVRO
from broker.operations.replies import Stage
from broker.operations.sent import StagesSent
from broker.topics.stages import began_ms
from broker.topics.topics import Topics
from broker.wire.json_numbers import read_long

LIST_BYTES_MAX: Final = 256 * 1024
"""The largest body with a list of stages."""


class Staging:
    """The handlers of stages."""

    def __init__(
        self, topics: Topics, *, messages_max: int, check_pointer: CheckPointer = any_pointer
    ) -> None:
        """Keep the service. ``messages_max`` bounds one store."""
        self._topics = topics
        self._messages_max = messages_max
        self._check_pointer = check_pointer

    async def begin_stage(self, request: Request) -> Answer:
        """Answer a new stage."""
        stage = await self._topics.begin_stage(request.topic, options_of(request))
        ends_ms = began_ms(stage) + self._topics.around.settings.stage_life_s * 1000
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
            await self._check_pointer(wanted.pointer, request.deadline)
        published = await self._topics.publish(request.topic, wanted, options)
        wants_avro = request.headers.get("Accept") == AVRO
        return publish_reply(published, BodyType.AVRO if wants_avro else BodyType.JSON)


def _stage(text: object) -> int:
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 19:
        number = int(text)
        if 0 < number <= POINTER_MAX:
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
