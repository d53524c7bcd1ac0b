"""What commands share: how to reach the broker, how to name topics, places and times."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from broker.client import Settings, SyncClient
from broker.clock import SystemClock
from broker.errors import BadName, UnavailableError
from broker.model import MESSAGE_ID_BYTES, MessageId, TopicId, check_topic
from broker.net import Address

Command = TypeVar("Command", bound=Callable[..., Any])

URL_DEFAULT: Final = "http://127.0.0.1:8080"
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_MS_DIGITS: Final = 19  # More do not fit in an int64.
_ID: Final = re.compile(rf"[0-9a-fA-F]{{{2 * MESSAGE_ID_BYTES}}}")


class NotNow(Exception):
    """What this command itself needs (storage, ZooKeeper) is not there now; later it may be.

    Not as where a broker can't be reached: there the advice is to start one.
    """

    def __init__(self, error: UnavailableError) -> None:
        super().__init__(error.message)
        self.error = error


def to_broker(command: Command) -> Command:
    """Add the options of every command that speaks to a broker."""
    url = click.option(
        "--url",
        envvar="BROKER_URL",
        default=URL_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Where the broker listens; several nodes of a cluster with commas between them.",
    )
    deadline = click.option(
        "--deadline",
        "deadline_s",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        help="Seconds that a request may take, its retries included.",
    )
    return url(deadline(json_option(command)))


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")(
        command
    )


def connect(url: str, deadline_s: float) -> SyncClient:
    """Return a client. Raises click.BadParameter if the address is none."""
    settings = Settings(url=url, deadline_s=deadline_s)
    for one in settings.urls:
        try:
            Address.of(one)
        except ValueError as error:
            text = f"{one!r} is not http://HOST:PORT"
            raise click.BadParameter(text, param_hint="--url") from error
    return SyncClient(settings=settings)


def topic_argument(command: Command) -> Command:
    """Add the argument NAMESPACE/TOPIC."""
    return click.argument("topic", type=topic_of, metavar="NS/TOPIC")(command)


def topic_of(text: str) -> TopicId:
    """Read NAMESPACE/TOPIC. Raises click.BadParameter."""
    namespace, slash, topic = text.partition("/")
    if not slash:
        raise click.BadParameter(f"{text!r} has no namespace: write NAMESPACE/TOPIC")
    try:
        return check_topic(namespace, topic)
    except BadName as error:
        raise click.BadParameter(error.message) from error


def place_option(*names: str, help_text: str) -> Callable[[Command], Command]:
    """Return an option whose value is a place in a topic, see ``place_of``."""
    return click.option(*names, type=_place, metavar="ID|TIME|AGE", help=help_text)


def _place(text: str) -> MessageId | int:
    try:
        return place_of(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def id_option(*names: str, help_text: str) -> Callable[[Command], Command]:
    """Return an option whose value is a message id."""
    return click.option(*names, type=_message_id, metavar="ID", help=help_text)


def _message_id(text: str) -> MessageId:
    if not _ID.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a message id of 40 hex digits")
    return bytes.fromhex(text)


def place_of(text: str, now_ms: int) -> MessageId | int:
    """Read a place in a topic.

    ``1h`` (also s, m, d, w): so long ago; ``now``; 40 hex digits: a message id; digits: ms since 1970;
    else a date or a time as RFC 3339 writes it, in UTC if it names no zone.

    Raises:
        ValueError: it is none of these.
    """
    if text == "now":
        return now_ms
    if _ID.fullmatch(text):
        return bytes.fromhex(text)
    if text.isdecimal() and len(text) < _MS_DIGITS:
        return int(text)
    if match := _DURATION.fullmatch(text):
        return max(0, now_ms - round(float(match[1]) * _UNITS_MS[match[2]]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration (30m, 1h, 2d), a time (2026-01-31T12:00:00Z), "
            "ms since 1970, nor a message id of 40 hex digits"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
