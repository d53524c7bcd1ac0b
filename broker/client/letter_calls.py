"""List, retry and drop dead letters.

A topic is a log, so no letter leaves its topic before its time. A retry or a drop publishes a mark there, which names the
letter, and the calls here pass marked letters by. A retry publishes the message again, in its first topic::

    dead-letter-retry-for   its topic and the subscriber whose handler failed; the topic's other ones pass it by
    dead-letter-settled     in a mark: the id of the letter           dead-letter-settled-by   retry or drop
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.client.dead_letters import (
    LEFT_OUT,
    PREFIX,
    RETRY_FOR,
    default_topic,
    fits,
    retry_for,
)
from broker.client.positions import id_of
from broker.client.values import IdPlace, NewMessage, TopicName
from broker.errors import BadRequest, NotFound, TopicNotFound, TopicRecreated
from broker.model import Message, MessageId, TopicId

if TYPE_CHECKING:
    from broker.client.aio import Client

SETTLED: Final = f"{PREFIX}settled"
SETTLED_BY: Final = f"{PREFIX}settled-by"
LISTED_MAX: Final = 100


class OpenLetter(NamedTuple):
    """A dead letter.

    ``message`` is the letter as it is in the topic of dead letters, and ``message_id`` the id of the message that failed.
    ``generation`` is that of ``topic`` at that time; None if the letter does not tell it. ``left_out`` names the parts that the
    letter does not have. ``time`` is when it was given up, RFC 3339. It was open when
    the message ``read_through`` was the last one in the topic of dead letters.
    """

    message: Message
    message_id: MessageId
    topic: str
    generation: int | None
    subscriber: str
    tries: str
    reason: str
    time: str
    left_out: str
    read_through: MessageId

    @property
    def id(self) -> MessageId:
        """The id of the letter itself."""
        return self.message.id


class DeadLetterCalls:
    """The calls of dead letters; ``client.dead_letters`` is an object of this class.

    ``topic`` is always that of the messages which failed; ``letters`` the topic of their letters, if it is not the default
    one. Every method raises TopicNotFound if there is no such topic, and another BrokerError if no answer came for the
    client's ``deadline_s``.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        topic: TopicName,
        *,
        letters: TopicName | None = None,
        subscriber: str | None = None,
        limit: int = LISTED_MAX,
    ) -> list[OpenLetter]:
        """Return the oldest open letters of a topic, at most ``limit``; with ``subscriber`` only the letters of that one.

        Raises BadRequest, too, if ``limit`` is no whole number of at least 1.
        """
        if type(limit) is not int or limit < 1:
            raise BadRequest(f"limit: must be a whole number of at least 1, not {limit!r}.")
        found: list[OpenLetter] = []
        async with aclosing(self._open(topic, letters)) as open_letters:
            async for letter in open_letters:
                if len(found) == limit:
                    break
                if subscriber in {None, letter.subscriber}:
                    found.append(letter)
        return found

    async def get(
        self, topic: TopicName, letter: IdPlace, *, letters: TopicName | None = None
    ) -> OpenLetter:
        """Return an open letter by its own id. Raises NotFound: there is none, or it was retried or dropped."""
        identifier = id_of(letter, "letter")
        async with aclosing(self._open(topic, letters)) as open_letters:
            async for found in open_letters:
                if found.id == identifier:
                    return found
        raise NotFound(f"There is no open dead letter {identifier.hex()}.")

    async def retry(
        self, topic: TopicName, letter: OpenLetter | IdPlace, *, letters: TopicName | None = None
    ) -> MessageId | None:
        """Publish the message of a letter again, for the subscriber that failed, and settle the letter.

        The letter is given as ``list`` returned it, or by its id. The message comes behind all present messages. If the
        call is repeated after an unknown outcome, within the broker's window of idempotency keys, the message is
        published once.

        Returns:
            The id of the new message; None if the message was published by an earlier attempt.

        Raises:
            NotFound: there is no such open letter, also if it was retried or dropped since ``list``; or it leaves parts
                out, and the message that has them is gone.
            BadRequest: the message's key and headers leave no room for the header of a retry.
            TopicRecreated: the message's topic was deleted and created again.
        """
        found = await self._found(topic, letter, letters)
        whole = await self._whole(found)
        headers = {
            name: value for name, value in whole.headers.items() if not name.startswith(PREFIX)
        }
        headers[RETRY_FOR] = retry_for(found.topic, found.subscriber)
        if not fits(whole.key, headers):
            raise BadRequest(
                f"Dead letter {found.id.hex()} can't be retried: beside the key and headers of its message there is no "
                f"room for the header {RETRY_FOR}. Publish the message again without it, for all subscribers, or with "
                "fewer headers; then drop the letter."
            )
        again = NewMessage(whole.payload, whole.key, headers)
        key = f"dead-letter-retry.{found.id.hex()}"
        try:
            published = await self._client.publish(
                found.topic, again, idempotency_key=key, generation=found.generation
            )
        except TopicRecreated as error:
            raise TopicRecreated(
                f"Dead letter {found.id.hex()} can't be retried: topic {found.topic} was deleted and created again. "
                "Publish the message to the new topic, or drop the letter."
            ) from error
        await self._settle(topic, letters, found, "retry")
        return published.first_id

    async def drop(
        self, topic: TopicName, letter: OpenLetter | IdPlace, *, letters: TopicName | None = None
    ) -> None:
        """Settle a letter, given as ``list`` returned it or by its id, without a retry. Raises NotFound."""
        await self._settle(topic, letters, await self._found(topic, letter, letters), "drop")

    # --- Inside -----------------------------------------------------------------------------------

    async def _found(
        self, topic: TopicName, letter: OpenLetter | IdPlace, letters: TopicName | None
    ) -> OpenLetter:
        if not isinstance(letter, OpenLetter):
            return await self.get(topic, letter, letters=letters)
        since = self._client.read(
            self._letters(topic, letters), letter.read_through, inclusive=False
        )
        async with aclosing(since.pages()) as pages:
            async for page in pages:
                if any(_id(message, SETTLED) == letter.id for message in page):
                    raise NotFound(f"Dead letter {letter.id.hex()} was retried or dropped since.")
        return letter

    def _letters(self, topic: TopicName, letters: TopicName | None) -> TopicId:
        resolve = self._client._topic  # noqa: SLF001 - The same package.
        return default_topic(resolve(topic)) if letters is None else resolve(letters)

    async def _open(
        self, topic: TopicName, letters: TopicName | None
    ) -> AsyncGenerator[OpenLetter]:
        """Yield the open letters of a topic, the oldest first. It reads the letters twice: marks come behind letters."""
        of = self._client._topic(topic)  # noqa: SLF001 - The same package.
        name = f"{of.namespace}/{of.topic}"
        settled: set[MessageId] = set()
        try:
            through = (await self._client.range(self._letters(topic, letters))).latest
            async for message in self._client.read(self._letters(topic, letters)):
                if (mark := _id(message, SETTLED)) is not None:
                    settled.add(mark)
        except TopicNotFound:
            if letters is None:
                await self._client.topic(topic)
                return  # It has no letters yet.
            raise
        async for message in self._client.read(self._letters(topic, letters)):
            found = _letter(message, through)
            if found is not None and found.topic == name and found.id not in settled:
                yield found

    async def _whole(self, letter: OpenLetter) -> Message:
        """Return a message with all parts: the letter itself, or else the message that failed."""
        if not letter.left_out:
            return letter.message
        found = await self._client.poll(letter.topic, letter.message_id, limit=1)
        if not found or found[0].id != letter.message_id:
            raise NotFound(
                f"Dead letter {letter.id.hex()} has no {letter.left_out}, and message "
                f"{letter.message_id.hex()} of {letter.topic} is gone. It can only be dropped."
            )
        return found[0]

    async def _settle(
        self, topic: TopicName, letters: TopicName | None, letter: OpenLetter, by: str
    ) -> None:
        await self._client.publish(
            self._letters(topic, letters),
            b"",
            headers={SETTLED: letter.id.hex(), SETTLED_BY: by},
            idempotency_key=f"dead-letter-{by}-settled.{letter.id.hex()}",
        )


def _letter(message: Message, through: MessageId) -> OpenLetter | None:
    """Return a message as a dead letter, as of when ``through`` was the last one; None if it is none."""
    identifier = _id(message, f"{PREFIX}id")
    if identifier is None:
        return None

    def told(name: str) -> str:
        return message.headers.get(PREFIX + name, b"").decode("utf-8", "backslashreplace")

    generation = told("generation")[:20]
    return OpenLetter(
        message,
        identifier,
        told("topic"),
        int(generation) if generation.isdecimal() and generation.isascii() else None,
        told("subscriber"),
        told("tries"),
        told("reason"),
        told("time"),
        message.headers.get(LEFT_OUT, b"").decode("utf-8", "backslashreplace"),
        through,
    )


def _id(message: Message, header: str) -> MessageId | None:
    """Return the message id in a header; None if there is none. Anyone may publish to a topic of letters."""
    try:
        return id_of(message.headers[header].decode("ascii"), header)
    except (KeyError, ValueError, BadRequest):
        return None
