"""``broker import``: publish the messages of a file to a topic, each once.

The import reads the file twice. The first time it checks the whole file: it agrees with its manifest, and every
message can be read. The second time it publishes the messages, chunk by chunk, if the chunk is still the one that was
checked. Each chunk is a numbered publish of a producer, whose id is made from the file's hash. So the broker does not
store a chunk again that a killed process or an earlier import has published. The import reads each chunk back by its
ids and compares it. The file ``FILE.NS.TOPIC.import`` has the number of chunks that are done.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker import small_files as files
from broker.client import NewMessage, Published, SyncClient
from broker.errors import BadRequest, BrokerError, DoneInPart, TaskFailed, TopicRecreated
from broker.model import Message, MessageId, TopicId
from broker.places import Place
from broker.transfer.cursor_file import CursorLog, check_log, log_of
from broker.transfer.exports import manifest_of
from broker.transfer.formats import Format
from broker.transfer.message_records import Contents, Progress, size_of
from broker.wire import attributes

CHUNK_MESSAGES_MAX: Final = 1000
CHUNK_BYTES_MAX: Final = 1 << 20


class ImportPlan(NamedTuple):
    """The file and topic of an import; with ``again``, an earlier import of the file does not count."""

    topic: TopicId
    file: Path
    format: Format
    again: bool

    @property
    def name(self) -> str:
        """The topic's name."""
        return "/".join(self.topic)

    @property
    def state(self) -> Path:
        """The path of the state file, which has the progress of the import."""
        return files.beside(self.file, f".{self.topic.namespace}.{self.topic.topic}.import")


def checked(given: ImportPlan, progress: Progress) -> list[Contents]:
    """Read a file to its end, and return its contents up to the end of each chunk.

    Raises TaskFailed if a message can't be read, or if the file does not agree with its manifest.
    """
    contents = Contents()
    ends = []
    manifest = files.read_json(manifest_of(given.file))
    total = manifest.get("messages") if manifest is not None else None
    with progress.counting("checking", total if isinstance(total, int) else None) as advance:
        for chunk in chunks(given.format.read(given.file)):
            for message in chunk:
                _check_attributes(given, message, contents.messages + 1)
                contents = contents.with_message(message)
            ends.append(contents)
            advance(len(chunk))
    if manifest is not None and contents.as_json() != {
        name: manifest.get(name) for name in contents.as_json()
    }:
        raise TaskFailed(
            f"{given.file} has {contents.messages:,} messages with the hash {contents.hash.hex()}, but "
            f"{manifest_of(given.file).name} says {manifest.get('messages')} with {manifest.get('sha256')}. The "
            "file was changed or damaged; nothing was published."
        )
    return ends


def _check_attributes(given: ImportPlan, message: Message, number: int) -> None:
    """Refuse a key or headers that no broker accepts, before the first publish. Raises TaskFailed."""
    try:
        attributes.encode(message.key, message.headers)
    except BadRequest as error:
        raise TaskFailed(
            f"{given.file}, message {number:,}: {error.message} Nothing was published."
        ) from error


class Import:
    """One import, which may have begun in another process."""

    def __init__(
        self, client: SyncClient, given: ImportPlan, ends: list[Contents], progress: Progress
    ) -> None:
        """Start, or continue by the state file.

        Raises:
            TaskFailed: the state file is about another import, or damaged.

        Args:
            client: A client of the broker.
            given: The import.
            ends: The result of ``checked``.
            progress: Shows the progress.
        """
        self._client = client
        self._given = given
        self._progress = progress
        self._ends = ends
        self._contents = contents = ends[-1] if ends else Contents()
        log = CursorLog(given.name, client.topic(given.topic).generation, client.settings.urls)
        by_contents = f"import-{contents.hash.hex()}"
        found = files.read_json(given.state)
        if found is not None and given.again and found.get("producer") == by_contents:
            # The state belongs to an import without --again, which has another producer.
            found = None
        self.is_resumed = found is not None
        producer = f"import-{secrets.token_hex(16)}" if given.again else by_contents
        chunks_done = 0
        if found is not None:
            producer, chunks_done = self._continued(found, log)
        self._state: dict[str, Any] = {
            **log._asdict(),
            **contents.as_json(),
            "producer": producer,
            "chunks": chunks_done,
        }
        self._counts = {"published": 0, "already": 0, "verified": 0}

    def _continued(self, found: dict[str, Any], log: CursorLog) -> tuple[str, int]:
        """Return the producer of an earlier process, and how many chunks it has done. Raises TaskFailed."""
        file = self._given.state
        try:
            of, contents = log_of(found), Contents.of(found)
            producer, done = found["producer"], found["chunks"]
        except (KeyError, TypeError, ValueError) as error:
            raise files.damaged(file) from error
        check_log(file, of, log)
        if contents != self._contents:
            raise TaskFailed(
                f"{file} belongs to an import of another file. Remove it to start again."
            )
        if not isinstance(producer, str) or done not in range(len(self._ends) + 1):
            raise files.damaged(file)
        return producer, done

    @property
    def _done(self) -> int:
        """How many messages are published."""
        chunks_done = self._state["chunks"]
        return self._ends[chunks_done - 1].messages if chunks_done else 0

    def run(self) -> dict[str, Any]:
        """Import the rest of the file, and return the counts.

        Raises:
            DoneInPart: a chunk that is read back differs from the published one; or the file has changed since it
                was checked, and chunks of it are published.
            TaskFailed: the file has changed, and no chunk is published.
        """
        state = self._state
        # The producer's id must be on disk before its first use.
        files.write_json(self._given.state, state)
        skipped = self._done
        self._counts["already"] = skipped
        seen = Contents()
        with self._progress.counting("importing", self._contents.messages) as advance:
            advance(skipped)
            for number, chunk in enumerate(chunks(self._given.format.read(self._given.file)), 1):
                seen = seen.with_all(chunk)
                if self._ends[number - 1 : number] != [seen]:
                    raise self._changed()
                if number <= state["chunks"]:
                    continue
                self._publish(number, chunk)
                state["chunks"] = number
                files.write_json(self._given.state, state)
                advance(len(chunk))
        if seen != self._contents:
            raise self._changed()
        self._given.state.unlink()
        return {"topic": self._given.name, **self._contents.as_json(), **self._counts}

    def _changed(self) -> TaskFailed:
        failure = DoneInPart if self._done else TaskFailed
        return failure(
            f"{self._given.file} has changed since it was checked. {self._done:,} of its "
            f"{self._contents.messages:,} messages are published. The same command continues the import if the file is "
            "as before."
        )

    def _publish(self, number: int, chunk: list[Message]) -> None:
        try:
            published = self._client.publish(
                self._given.topic,
                [new_of(one) for one in chunk],
                producer=(self._state["producer"], number),
                generation=self._state["generation"],
            )
        except TopicRecreated as error:
            raise DoneInPart(
                f"{error.message} {self._done:,} messages were published to the former topic. Remove "
                f"{self._given.state} to import the file into the new one."
            ) from error
        except BrokerError as error:
            error.add_note(
                f"{self._done:,} of {self._contents.messages:,} messages are published. The same "
                "command continues the import, and publishes each message once."
            )
            raise
        self._counts["already" if published.replayed else "published"] += len(chunk)
        self._verify(published, chunk)

    def _verify(self, published: Published, chunk: list[Message]) -> None:
        """Read a chunk back and compare it."""
        if published.first_id is None:
            return  # The broker no longer knows the ids of a chunk that was published long ago.
        found = self._read_from(published.first_id, len(chunk))
        if Contents().with_all(found) != Contents().with_all(chunk):
            raise DoneInPart(
                f"{len(chunk):,} messages that were published to {self._given.name} from {published.first_id.hex()} on "
                "could not all be read back: some were purged or have expired. To publish the whole file again, give "
                "--again"
            )
        self._counts["verified"] += len(chunk)

    def _read_from(self, first: MessageId, count: int) -> list[Message]:
        """Return ``count`` messages from an id on; fewer if there are no more. One poll may return fewer."""
        found: list[Message] = []
        while len(found) < count:
            start, left = found[-1].id if found else first, count - len(found)
            place = Place(start, self._state["generation"])
            page = self._client.poll(self._given.topic, place, inclusive=not found, limit=left)
            if not page:
                break
            found += page
        return found


def new_of(message: Message) -> bytes | NewMessage:
    """Return a message for publishing: its payload alone if it has no key and no headers, as in CDAP's TMS."""
    if message.key is None and not message.headers:
        return message.payload
    return NewMessage(message.payload, message.key, message.headers)


def chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Cut messages into requests. The same file gives the same requests, so their numbers match."""
    return files.chunked(messages, size_of, CHUNK_MESSAGES_MAX, CHUNK_BYTES_MAX)
