"""The values that the client takes and returns, in addition to those of ``broker.model``."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypedDict, get_args

from typing_extensions import override

from broker.client import typed_options
from broker.client.credentials import listed_members
from broker.client.node_directory import Leader
from broker.http.answer import Address
from broker.http.outbound import header_lines
from broker.model import NO_HEADERS, MessageId, TopicId
from broker.places import Place
from broker.secret import Secret, is_secret_name, not_pickled, redacted
from broker.wire.jsontext import encode_json

TopicName = str | TopicId | tuple[str, str]
"""How callers name a topic: ``"namespace/topic"``, ``"topic"`` in the client's own namespace, or
a pair."""

Payload = bytes | str
"""The content of a message: bytes, or text, which becomes UTF-8."""


class NewMessage(NamedTuple):
    """A message to publish that has more than a payload.

    ``key`` and ``headers`` are stored beside the payload, and readers get them with it; text becomes UTF-8. ``ttl_s``
    is how many seconds this message lives, if shorter than the topic's.
    """

    payload: Payload
    key: Payload | None = None
    headers: Mapping[str, Payload] = NO_HEADERS
    ttl_s: int | None = None

    @classmethod
    def of_json(
        cls,
        value: object,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
    ) -> NewMessage:
        """Return a message whose payload is a JSON value, as compact text in UTF-8. Raises BadRequest if it is none."""
        return cls(encode_json(value), key, headers, ttl_s)


Publishable = Payload | NewMessage
"""One message to publish."""

Producer = tuple[str, int]
"""A producer's id, 1 to 255 visible ASCII characters, and the number of one publish, at least 0."""

Start = MessageId | str | Place | int | datetime | None
"""Where reading starts: a message id (20 bytes, or its 40 hex digits), a moment (a datetime with a time zone, or ms
since 1970), or None for the oldest message.

A ``Place``, or its text ``<40 hex digits>@<generation>``, is a message id in one generation of the topic. If the topic
was deleted and created again, the broker refuses it with TopicRecreated."""

IdPlace = MessageId | str | Place
"""A message id: 20 bytes, its 40 hex digits, or either form of a ``Place``."""


class Published(NamedTuple):
    """The acknowledgement of one publish: the message is stored and synced.

    ``rollback`` is the body of a request to undo a transactional publish; None for any other. ``replayed`` is True if
    the broker had acknowledged the same idempotency key, producer's number or stages before, and stored nothing now.
    ``leader`` is the node that acknowledged, with its epoch; a standalone broker has none.

    ``first_id`` and ``last_id`` are the ids of the first and the last published message, and ``count`` is the number
    of messages. For stages and stored messages the ids are those of the references, as ``browse`` shows them. A
    message that shared a request with messages of other calls has its own id here. An unknown value is None: some
    brokers send no ids and no count, and none does for a producer's number below its last one. ``generation`` is that
    of the topic; ``Place(published.last_id, published.generation)`` is a place to read on from.
    """

    rollback: bytes | None = None
    replayed: bool = False
    leader: Leader | None = None
    first_id: MessageId | None = None
    last_id: MessageId | None = None
    count: int | None = None  # type: ignore[assignment]  # A tuple's own method has this name.
    generation: int | None = None


class TopicRange(NamedTuple):
    """A range ``(after, through]`` of a topic: the number of its messages and bytes, and the ends of its parts.

    All readable messages lie behind ``earliest``; new messages come behind ``latest``. ``lost`` is the number of
    messages behind ``after`` that have expired; it is a lower bound. ``size`` is the approximate size of the payloads.
    All ids are in ``generation`` of the topic; None: the broker does not say it.
    """

    earliest: MessageId
    latest: MessageId
    after: MessageId
    through: MessageId
    messages: int
    size: int
    lost: int
    ends: list[MessageId]
    generation: int | None = None


class TopicInfo(NamedTuple):
    """A topic as the broker describes it; ``properties`` are the stored strings."""

    id: TopicId
    generation: int
    ttl_s: int
    properties: Mapping[str, str]


class Browsed(NamedTuple):
    """A message as browsing shows it.

    ``payload`` is None for a reference, and only the first KiB if ``truncated``. ``consumable`` is None unless the
    caller gave a snapshot. ``key`` and ``headers`` are those that the publisher gave.
    """

    id: MessageId
    timestamp_ms: int
    size: int
    expires_at: str | None
    kind: Literal["inline", "stored", "reference"]
    tx_state: Literal["none", "published", "rolled_back"]
    write_pointer: int | None
    payload: bytes | None
    truncated: bool
    consumable: bool | None
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS


class BrowsePage(NamedTuple):
    """Some messages, and the place of the next page.

    ``next`` is its ``start``, or, in descending order, its ``stop``; None: there is no next page. It is the text of a
    ``Place``, so a page of a topic that was deleted and created again is refused.
    """

    messages: Sequence[Browsed]
    next: str | None


OnFull = Literal["wait", "drop", "raise"]
"""The reaction of ``publish_later`` to a full queue."""


def check_on_full(choice: OnFull) -> OnFull:
    """Return ``choice`` if it is one of the allowed words. Raises ValueError."""
    if choice not in _ON_FULL:
        raise ValueError(f"on_full is one of {', '.join(_ON_FULL)}, not {choice!r}.")
    return choice


_ON_FULL: Final = get_args(OnFull)
_PATH_MAX: Final = 4096
_MAY_BE_NOTHING: Final = {"retry_delay_min_s", "retry_delay_max_s", "idle_s_max"}
_LEAST: Final[Mapping[type, float]] = {int: 1, float: 1e-6}

Stats = Mapping[str, Any]
"""The JSON object of ``GET …/stats``."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """The settings of a client. They can be pickled, to be used by jobs on other machines, unless they have a secret.

    Attributes:
        url: the address of the broker, or those of several nodes of a cluster with commas between them.
        follow_leaders: whether to send requests directly to the topics' leaders, at the addresses that replies
            name. With False the client uses only ``url``: for proxies and load balancers, behind which the
            nodes' own addresses can't be reached.
        namespace: the namespace of topics that are named without one.
        headers: sent with every request.
        token: the caller's token, sent as ``Authorization: Bearer``. It is never shown, nor pickled.
        token_file: a file with the token, in place of ``token``, which its owner alone can read (mode 0600). The
            client reads it again when a server answers 401, so that a token is replaced without a restart.
        trust_members: hosts with commas between them, which may get the caller's credentials although ``url`` does not
            have them: names (``*`` stands for any part), addresses, networks (``10.0.0.0/24``). A client with
            credentials follows a leader only to such hosts, to those in ``url``, and over https to members with a
            certificate of ``ca_file``.
        ca_file: a PEM file with the certificates to trust for https addresses, if not the system's.
        certificate_file: a PEM file with the certificate that the client shows to the broker; empty: it shows none.
        key_file: a PEM file with the key of that certificate; empty: it is in the same file.
        deadline_s: the time limit of a call, from the call on: with its retries and its waits for room, for earlier
            publishes and for a connection. For ``publish_later`` it is the time until the message is settled. The
            wait of a poll is not included. A tail or a stream of events has no such limit, but gives up an answer that
            brings no whole message for so long, and asks again.
        connect_timeout_s: the time limit of one attempt to connect.
        retry_delay_min_s: the first pause before a retry; it doubles up to ``retry_delay_max_s``
            and is jittered. It is never shorter than the broker's ``Retry-After``.
        retry_delay_max_s: the longest pause before a retry.
        coalesce: whether awaited publishes of one topic share requests.
        batch_messages_max: the maximum number of messages in one request.
        batch_bytes_max: the maximum of payload bytes in one request; a single message may be larger.
        requests_in_flight_max: how many coalesced requests may be in flight on one connection.
        connections_per_topic: how many connections the coalesced publishes of a topic share. With more
            than one, publishing is faster when many callers wait. But publishes that are awaited at the
            same time may be stored in another order than that of their calls.
        idempotent: whether the client gives each publish an idempotency key, so that it is retried also
            when its outcome is unknown. It costs the broker one small row for each request.
        connections_max: the maximum number of connections for all requests except coalesced publishes.
        idle_s_max: a connection that was idle for longer is not used again.
        later_messages_max: how many messages the client holds, over all topics, until they are settled: those of
            ``publish_later``, and of awaited publishes and stores. A call for which there is no room waits for it,
            and is refused at its deadline (``Overloaded``).
        later_bytes_max: how many bytes of such messages it holds.
        later_on_full: the reaction of ``publish_later`` when there is no room: ``"wait"``, ``"drop"`` the new
            message, or ``"raise"``.

    Raises:
        TypeError: a value has another type.
        ValueError: an address, a header or a token is not valid (credentials don't belong into an address), there are
            several credentials, a number is not positive (pauses and ``idle_s_max`` may be 0), or ``later_on_full`` is
            none of the allowed words.
    """

    url: str = "http://127.0.0.1:8080"
    follow_leaders: bool = True
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = ()
    token: Secret | str = Secret()  # noqa: RUF009 - It never changes.
    token_file: str = ""
    trust_members: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    deadline_s: float = 30.0
    connect_timeout_s: float = 10.0
    retry_delay_min_s: float = 0.05
    retry_delay_max_s: float = 5.0
    coalesce: bool = True
    batch_messages_max: int = 10_000
    batch_bytes_max: int = 1 << 20
    requests_in_flight_max: int = 2
    connections_per_topic: int = 1
    idempotent: bool = False
    connections_max: int = 100
    idle_s_max: float = 10.0
    later_messages_max: int = 10_000
    later_bytes_max: int = 64 << 20
    later_on_full: OnFull = "wait"

    def __post_init__(self) -> None:
        typed_options.check_types(self)
        if len({Address.of(url).tls for url in self.urls}) > 1:
            raise ValueError(f"All of a cluster's addresses must be https, or none: {self.url!r}.")
        header_lines(dict(self.headers))
        self._check_credentials()
        for part in fields(self):
            value = getattr(self, part.name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            least = 0 if part.name in _MAY_BE_NOTHING else _LEAST[type(value)]
            if not least <= value < math.inf:
                raise ValueError(f"{part.name} can't be {value}.")
        check_on_full(self.later_on_full)

    def _check_credentials(self) -> None:
        if isinstance(self.token, str):
            object.__setattr__(self, "token", Secret(self.token))
        text = self.bearer.reveal()
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("token: a token has visible ASCII characters alone.")
        if len(self.token_file) > _PATH_MAX or "\n" in self.token_file:
            raise ValueError("token_file is the path of a file, not the token.")
        named = [name for name, _ in self.headers if name.lower() == "authorization"]
        if bool(text) + bool(self.token_file) + len(named) > 1:
            raise ValueError("Give one of token, token_file and the header Authorization.")
        listed_members(self.trust_members)

    @property
    def bearer(self) -> Secret:
        """The token; empty if there is none, or if it is in a file."""
        assert isinstance(self.token, Secret)
        return self.token

    @property
    def has_credentials(self) -> bool:
        """True if requests carry something that proves the caller."""
        return bool(
            self.token or self.token_file or any(is_secret_name(n) for n, _ in self.headers)
        )

    @override
    def __repr__(self) -> str:
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        values["headers"] = tuple(redacted(self.headers))
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @override
    def __getstate__(self) -> list[Any]:
        """Return the values for a pickle. Raises TypeError: a header is a secret, as a token is."""
        for name, _ in self.headers:
            if is_secret_name(name):
                not_pickled(f"The header {name}")
        return [getattr(self, part.name) for part in fields(self)]

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses in ``url``, at least one."""
        return tuple(url.strip().rstrip("/") for url in self.url.split(","))

    def changed(self, url: str | Sequence[str] | None, options: Mapping[str, Any]) -> Settings:
        """Return a copy of these settings with the given single settings, and with the given addresses.

        Raises:
            TypeError: there is no such setting; or, as ValueError, as for ``Settings``.
        """
        if isinstance(url, list | tuple) and all(isinstance(each, str) for each in url):
            url = ",".join(url)
        if url is not None:
            options = {**options, "url": url}
        return typed_options.changed(self, options)


class SettingOptions(TypedDict, total=False):
    """Single settings by name, for calls; ``Settings`` describes them."""

    follow_leaders: bool
    namespace: str
    headers: tuple[tuple[str, str], ...]
    token: Secret | str
    token_file: str
    trust_members: str
    ca_file: str
    certificate_file: str
    key_file: str
    deadline_s: float
    connect_timeout_s: float
    retry_delay_min_s: float
    retry_delay_max_s: float
    coalesce: bool
    batch_messages_max: int
    batch_bytes_max: int
    requests_in_flight_max: int
    connections_per_topic: int
    idempotent: bool
    connections_max: int
    idle_s_max: float
    later_messages_max: int
    later_bytes_max: int
    later_on_full: OnFull


def shown(value: object) -> str:
    """Return a value of a wrong type as errors show it."""
    return f"{type(value).__name__} {reprlib.repr(value)}"
