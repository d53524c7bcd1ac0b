"""``broker export``: write a range of a topic to a file.

The range is fixed at the start of the export; messages that are published later are not part of it. The export
writes messages to ``FILE.part``, chunk by chunk. After each chunk it writes its progress to ``FILE.state``, and a
stopped export continues from there. At the end one rename gives the file its name, and then
``FILE.manifest.json`` gets the count and the hash::

    reading ──last chunk──▶ read ──file has its name──▶ placed ──manifest──▶ no state

Each step is idempotent, so an export that was stopped within a step repeats this step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker import small_files as files
from broker.client import SyncClient, TailOptions
from broker.errors import BadRequest, TaskFailed, TopicRecreated
from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MIN,
    Message,
    MessageId,
    TopicId,
    first_log_key_at,
    log_key_before,
    message_id_from_hex,
)
from broker.places import Place
from broker.small_files import writing
from broker.transfer.cursor_file import CursorLog, check_log, log_of
from broker.transfer.formats import Format
from broker.transfer.message_records import Contents, Progress, size_of

CHUNK_MESSAGES_MAX: Final = 10_000
CHUNK_BYTES_MAX: Final = 16 << 20
READING, READ, PLACED = "reading", "read", "placed"


class TypedPlace(NamedTuple):
    """A place in a topic: the typed text, and the place that it meant then, maybe with its generation."""

    text: str | None = None
    place: MessageId | int | None = None
    generation: int | None = None


class ExportPlan(NamedTuple):
    """The range and file of an export."""

    topic: TopicId
    file: Path
    format: Format
    since: TypedPlace
    until: TypedPlace

    @property
    def asked(self) -> dict[str, Any]:
        """The values that a state must have if it belongs to this export, beside those of its topic."""
        return {"format": self.format.name, "since": self.since.text, "until": self.until.text}

    @property
    def part(self) -> Path:
        """The path of the unfinished file."""
        return files.beside(self.file, ".part")

    @property
    def state(self) -> Path:
        """The path of the state file, which has the progress of the export."""
        return files.beside(self.file, ".state")

    @property
    def manifest(self) -> Path:
        """The path of the finished file's manifest."""
        return manifest_of(self.file)


class Export:
    """One export, which may have begun in another process."""

    def __init__(
        self, client: SyncClient, wanted: ExportPlan, progress: Progress, *, deadline_s: float
    ) -> None:
        """Start, or continue by the state file.

        Raises:
            TaskFailed: the state file is about another export, or damaged.
            TopicRecreated: a place of the range is in another generation of the topic.
        """
        self._client = client
        self._wanted = wanted
        self._progress = progress
        self._deadline_s = deadline_s
        generation = client.topic(wanted.topic).generation
        for named in (wanted.since.generation, wanted.until.generation):
            if named is not None and named != generation:
                raise TopicRecreated.between(wanted.topic, named, generation)
        log = CursorLog("/".join(wanted.topic), generation, client.settings.urls)
        found = files.read_json(wanted.state)
        self.is_resumed = found is not None
        self._state = self._begun(log) if found is None else self._continued(found, log)
        self._contents = Contents.of(self._state)

    def _continued(self, found: dict[str, Any], log: CursorLog) -> dict[str, Any]:
        """Return the state of an earlier process. Raises TaskFailed."""
        wanted = self._wanted
        try:
            of = log_of(found)
            stored = {name: found[name] for name in wanted.asked}
            _check_values(found)
        except (KeyError, TypeError, ValueError, BadRequest) as error:
            raise files.damaged(wanted.state, wanted.part) from error
        check_log(wanted.state, of, log)
        if stored != wanted.asked:
            raise TaskFailed(
                f"{wanted.state} belongs to another export: {_differences(stored, wanted.asked)}. Repeat that export's "
                f"command, name another file, or remove {wanted.state.name}."
            )
        return {**found, "brokers": log.brokers}

    def _begun(self, log: CursorLog) -> dict[str, Any]:
        wanted = self._wanted
        found = self._client.range(wanted.topic)
        if found.generation not in (None, log.generation):
            raise TopicRecreated.between(wanted.topic, log.generation, found.generation)
        through = found.latest
        return {
            **log._asdict(),
            **wanted.asked,
            "stage": READING,
            "after": _behind(wanted.since.place).hex(),
            "through": min(through, _last_before(wanted.until.place)).hex(),
            "first": None,
            "last": None,
            "position": 0,
            **Contents().as_json(),
        }

    def run(self) -> dict[str, Any]:
        """Export the rest of the range, and return the manifest."""
        wanted, state = self._wanted, self._state
        if state["stage"] == READING:
            self._read()
            self._note(stage=READ)
        if state["stage"] == READ:
            with writing(wanted.file):
                wanted.format.finish(wanted.part, state["position"], wanted.file)
            self._note(stage=PLACED)
        fields = ("topic", "generation", "format", "since", "until", "first", "last")
        manifest = {name: state[name] for name in fields} | self._contents.as_json()
        files.write_json(wanted.manifest, manifest)
        wanted.format.discard(wanted.part)
        wanted.state.unlink()
        return manifest

    def _read(self) -> None:
        state = self._state
        if not self._contents.messages:
            self._note(position=self._append(0, []))
        after, through = (
            bytes.fromhex(state["last"] or state["after"]),
            bytes.fromhex(state["through"]),
        )
        if after[:LOG_KEY_BYTES] > through[:LOG_KEY_BYTES]:
            return
        begin = Place(after, state["generation"])
        left = self._left(begin, through)
        with self._progress.counting("exporting", left) as advance:
            for chunk in self._chunks(begin, through):
                position = self._append(state["position"], chunk)
                self._contents = self._contents.with_all(chunk)
                self._note(
                    position=position,
                    first=state["first"] or chunk[0].id.hex(),
                    last=chunk[-1].id.hex(),
                    **self._contents.as_json(),
                )
                advance(len(chunk))

    def _append(self, position: int, chunk: list[Message]) -> int:
        with writing(self._wanted.part):
            return self._wanted.format.append(self._wanted.part, position, chunk)

    def _left(self, after: Place, through: MessageId) -> int:
        """Return the number of messages to export; tell of those that were there, and are not any more."""
        found = self._client.range(self._wanted.topic, after=after, through=through)
        if not self.is_resumed and after.id < found.earliest <= through:
            # Messages that had expired before the export began are not missing.
            start = after._replace(id=found.earliest)
            found = self._client.range(self._wanted.topic, after=start, through=through)
        if found.lost:
            self._progress.say(
                f"at least {found.lost:,} messages are missing in {self._wanted.file}: they expired or were purged during "
                "the export, or a repair of the store did not find them"
            )
        return found.messages

    def _chunks(self, after: Place, through: MessageId) -> Iterator[list[Message]]:
        """Yield the messages of ``(after, through]`` in lists of bounded size."""
        options = TailOptions(follow=False, give_up_after_s=self._deadline_s)
        messages = self._client.tail(self._wanted.topic, after, inclusive=False, options=options)
        # The id of a reference's message begins with the row of the reference, so rows are compared.
        last = through[:LOG_KEY_BYTES]
        until = self._wanted.until.place
        stop = until if isinstance(until, bytes) else None

        def is_in(message: Message) -> bool:
            return message.id[:LOG_KEY_BYTES] <= last and (stop is None or message.id < stop)

        with closing(messages):
            within = takewhile(is_in, messages)
            yield from files.chunked(within, size_of, CHUNK_MESSAGES_MAX, CHUNK_BYTES_MAX)

    def _note(self, **changed: Any) -> None:
        self._state.update(changed)
        files.write_json(self._wanted.state, self._state)


def manifest_of(file: Path) -> Path:
    """Return the path of a file's manifest, which has the count and hash of its contents."""
    return files.beside(file, ".manifest.json")


def _behind(start: MessageId | int | None) -> MessageId:
    """Return the id after which a range begins."""
    if start is None:
        return LOG_KEY_MIN + LOG_KEY_MIN
    if isinstance(start, int):
        return log_key_before(first_log_key_at(start)) + LOG_KEY_MIN
    return (int.from_bytes(start, "big") - 1).to_bytes(len(start), "big") if any(start) else start


def _last_before(stop: MessageId | int | None) -> MessageId:
    """Return the id of the last row before ``stop``, which is exclusive.

    If ``stop`` is a message within a reference, the last row is the reference's own: its earlier messages count.
    """
    if stop is None:
        return b"\xff" * (2 * LOG_KEY_BYTES)
    if isinstance(stop, int):
        return log_key_before(first_log_key_at(stop)) + LOG_KEY_MIN
    row, payload = stop[:LOG_KEY_BYTES], stop[LOG_KEY_BYTES:]
    return (row if payload != LOG_KEY_MIN else log_key_before(row)) + LOG_KEY_MIN


def _check_values(state: dict[str, Any]) -> None:
    """Raise KeyError, TypeError, ValueError or BadRequest unless a state file has values that this module writes."""
    message_id_from_hex(state["after"])
    message_id_from_hex(state["through"])
    ends, contents = (state["first"], state["last"]), Contents.of(state)
    if contents.messages:
        for each in ends:
            message_id_from_hex(each)
    elif ends != (None, None):
        raise ValueError("it has ends without messages")
    if state["stage"] not in {READING, READ, PLACED} or state["position"] < 0:
        raise ValueError("there is no such stage or position")


def _differences(stored: dict[str, Any], asked: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} is {stored[name] or 'not given'} there and {asked[name] or 'not given'} here"
        for name in asked
        if stored[name] != asked[name]
    )
