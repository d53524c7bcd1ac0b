"""The options of the format ``tms``: this module reads them from Spark's mapping, checks them, and makes values.

An option has the name of Kafka's option if the meaning is the same. Spark passes all names in lower case, so this
module compares them without case. The tables here have the spelling for people. This module refuses unknown names, so
that a misspelt limit does not go unnoticed. A name that begins with ``tms.`` is a setting of the client
(``broker.client.Settings``), such as ``tms.namespace``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple, TypeVar

from broker.client.protocol import topic_id
from broker.client.values import Settings
from broker.errors import BadRequest
from broker.model import Snapshot
from broker.moments import moment_of, span_s
from broker.places import Place
from broker.spark.offsets import ONE_MS, SourceOffset
from broker.wire.transaction import decode_transaction

T = TypeVar("T")

DEADLINE_S: Final = 120.0
"""How long the client tries a call to the broker. An outage of a minute shall not end a query."""
DELAY_S: Final = 900.0
"""The default of ``maxTriggerDelay``, as in Kafka's source."""
AMOUNT_MAX: Final = (1 << 62) - 1

_CLIENT: Final = ("url", "tokenFile")
_NOT_AS_AN_OPTION: Final = (
    "A token is no option: Spark shows options in plans, in its UI and in event logs. Write it into a file that the "
    "user of Spark's processes alone can read, on each machine, and give its path as tokenFile."
)
SOURCE: Final = (
    *_CLIENT,
    "topic",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "heartbeatInterval",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "isolation",
    "snapshot",
    "pushDownFilters",
)
SINK: Final = (*_CLIENT, "topic", "dedupKey")
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "heartbeatInterval",
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "pushDownFilters")
_OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""Options that Spark itself adds to those of a sink."""
_SETTING: Final = "tms."
_SETTINGS: Final = {
    field.name: type(getattr(Settings(), field.name))
    for field in fields(Settings)
    if field.name not in {"url", "headers", "token"}
}


class SinkProducer(NamedTuple):
    """The producer's id and number of a publish. A publish with a number not above the last one is a duplicate."""

    id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Which messages a query reads, and in which portions.

    Attributes:
        settings: the client's settings.
        topic: the topic, with the name from the option.
        start: the place of the first message; None: not given.
        end: the place behind the last message of a batch query; "latest": behind the latest message.
        messages_max: the most messages of a micro-batch.
        bytes_max: about the most bytes of payloads of a micro-batch.
        messages_min: a micro-batch waits until there are so many messages.
        delay_s_max: the longest time that a micro-batch waits for ``messages_min``.
        beat_interval_s: a silent topic gets a heart-beat each time so many seconds have passed; None: no heart-beats.
        parts_min: the least number of partitions of a range; 0: by its size.
        part_messages_max: about the most messages of a partition.
        fail_on_data_loss: True if the query shall fail when messages expired before it read them.
        snapshot: the snapshot of the transaction in which the query reads.
        push_down: True if filters of a batch query shall narrow the range.
    """

    settings: Settings
    topic: str
    start: SourceOffset | Literal["earliest", "latest"] | None = None
    end: SourceOffset | Literal["latest"] = "latest"
    messages_max: int | None = None
    bytes_max: int | None = None
    messages_min: int = 0
    delay_s_max: float = DELAY_S
    beat_interval_s: float | None = None
    parts_min: int = 0
    part_messages_max: int | None = None
    fail_on_data_loss: bool = True
    snapshot: Snapshot | None = None
    push_down: bool = False

    @property
    def topic_name(self) -> str:
        """The topic as ``namespace/name``, however the option writes it."""
        return "/".join(topic_id(self.topic, self.settings.namespace))

    @property
    def starts_at_a_message(self) -> bool:
        """Return whether the query names its first message by id.

        If it starts at a time, or at the earliest message, expired messages are no loss.
        """
        return isinstance(self.start, SourceOffset) and not self.start.is_time


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a sink; ``topic`` None: each row names its topic."""

    settings: Settings
    topic: str | None
    producer: SinkProducer | None


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the options of a source.

    Raises:
        ValueError: an option is missing, is not known, or has a bad value; the text names valid values.
    """
    read = _OptionReader(given, SOURCE, "reads")
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if read.has(name):
            kind, other = ("stream", "batch") if streaming else ("batch", "streaming")
            raise ValueError(
                f"The option {name} is for {other} queries, and this is a {kind} query: leave it out."
            )
    return SourceOptions(
        settings=read.settings(),
        topic=read.required("topic"),
        start=_start(read, streaming=streaming),
        end=_end(read),
        messages_max=read.option("maxOffsetsPerTrigger", _whole(1)),
        bytes_max=read.option("maxBytesPerTrigger", _whole(1)),
        messages_min=read.option("minOffsetsPerTrigger", _whole(1)) or 0,
        delay_s_max=read.option("maxTriggerDelay", _duration_s, DELAY_S),
        beat_interval_s=read.option("heartbeatInterval", _interval_s),
        parts_min=read.option("minPartitions", _whole(1)) or 0,
        part_messages_max=read.option("maxRecordsPerPartition", _whole(1)),
        fail_on_data_loss=read.option("failOnDataLoss", _flag, default=True),
        snapshot=_snapshot(read),
        push_down=read.option("pushDownFilters", _flag, default=False),
    )


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a sink. Raises ValueError, as ``source_options`` does."""
    read = _OptionReader(given, SINK, "writes")
    if streaming and read.has("dedupKey"):
        raise ValueError(
            "The option dedupKey is for df.write: a stream uses its query id and batch id instead."
        )
    return SinkOptions(
        settings=read.settings(),
        topic=read.option("topic", str),
        producer=read.option("dedupKey", _producer),
    )


class _OptionReader:
    """Reads the given options by their names in lower case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], does: str) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        if {"token", f"{_SETTING}token"} & set(self._given):
            raise ValueError(_NOT_AS_AN_OPTION)
        names = {name.lower() for name in known} | _OF_SPARK
        names |= {_SETTING + name for name in _SETTINGS}
        for name in self._given:
            if name not in names:
                raise ValueError(
                    f"The format tms does not know the option {name!r} where it {does}. It knows "
                    f"{', '.join(known)}; and the client's settings: "
                    f"{', '.join(_SETTING + setting for setting in _SETTINGS)}."
                )

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def required(self, name: str) -> str:
        value = self._given.get(name.lower(), "").strip()
        if not value:
            raise ValueError(f'The format tms needs the option {name}: .option("{name}", …).')
        return value

    def option(self, name: str, parse: Callable[[str], T], default: Any = None) -> Any:
        """Return an option's value, or ``default``. Raises ValueError with the option's name."""
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            raise ValueError(f"The option {name} can't be {text!r}: {error}") from error

    def settings(self) -> Settings:
        """Return the client's settings. Raises ValueError."""
        changes: dict[str, Any] = {"deadline_s": DEADLINE_S}
        for name, kind in _SETTINGS.items():
            if self.has(_SETTING + name):
                changes[name] = self.option(_SETTING + name, _PARSERS[kind])
        if self.has("tokenFile"):
            changes["token_file"] = self.required("tokenFile")
        return replace(Settings(url=self.required("url")), **changes)


def _start(read: _OptionReader, *, streaming: bool) -> SourceOffset | Literal["earliest", "latest"]:
    offsets = read.option("startingOffsets", _one_of_or_id("earliest", "latest"))
    time = read.option("startingTimestamp", _time)
    if offsets is not None and time is not None:
        raise ValueError("Give startingOffsets or startingTimestamp, not both.")
    if offsets == "latest" and not streaming:
        raise ValueError(
            "startingOffsets can't be 'latest' in a batch query, which would read nothing: give "
            "'earliest', a message id, or startingTimestamp."
        )
    default: Literal["earliest", "latest"] = "latest" if streaming else "earliest"
    place: SourceOffset | Literal["earliest", "latest"] = offsets or time or default
    return place


def _end(read: _OptionReader) -> SourceOffset | Literal["latest"]:
    offsets = read.option("endingOffsets", _one_of_or_id("latest"))
    time = read.option("endingTimestamp", _time)
    if offsets is not None and time is not None:
        raise ValueError("Give endingOffsets or endingTimestamp, not both.")
    place: SourceOffset | Literal["latest"] = offsets or time or "latest"
    return place


def _snapshot(read: _OptionReader) -> Snapshot | None:
    isolation = read.option("isolation", _one_of("none", "transactional"), "none")
    snapshot: Snapshot | None = read.option("snapshot", _decoded)
    if isolation == "transactional" and snapshot is None:
        raise ValueError(
            "isolation=transactional needs the option snapshot: the transaction's snapshot in hex, "
            "from broker.wire.transaction.encode_transaction(snapshot).hex()."
        )
    if isolation == "none" and snapshot is not None:
        raise ValueError("The option snapshot is used with isolation=transactional only.")
    return snapshot


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= AMOUNT_MAX:
            raise ValueError(f"give a whole number from {least}.")
        return int(text)

    return parse


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("give a number.") from None


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("give true or false.")
    return text.lower() == "true"


_PARSERS: Final[Mapping[type, Callable[[str], Any]]] = {
    bool: _flag,
    int: _whole(1),
    float: _number,
    str: str,
}


def _duration_s(text: str) -> float:
    return span_s(text.lower(), bare="ms")


def _interval_s(text: str) -> float:
    interval_s = _duration_s(text)
    if not interval_s:
        raise ValueError("give a duration above 0, or leave it out for none.")
    return interval_s


def _time(text: str) -> SourceOffset:
    return SourceOffset.at_time(moment_of(text) * ONE_MS)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"give {' or '.join(words)}.")
        return text.lower()

    return parse


def _one_of_or_id(*words: str) -> Callable[[str], SourceOffset | str]:
    def parse(text: str) -> SourceOffset | str:
        if text.lower() in words:
            return text.lower()
        try:
            return SourceOffset.of(*Place.of(text))
        except BadRequest:
            raise ValueError(
                f"give {', '.join(words)} or the 40 hex digits of a message id, perhaps with @ and the topic's generation."
            ) from None

    return parse


def _decoded(text: str) -> Snapshot:
    try:
        return decode_transaction(bytes.fromhex(text))
    except (ValueError, BadRequest) as error:
        raise ValueError(f"give a transaction's snapshot in hex ({error}).") from error


def _producer(text: str) -> SinkProducer:
    identifier, slash, number = text.rpartition("/")
    if not slash or not identifier or not re.fullmatch(r"\d{1,18}", number):
        raise ValueError("give an id and a number with a slash between them, such as load-7/0.")
    return SinkProducer(identifier, int(number))
