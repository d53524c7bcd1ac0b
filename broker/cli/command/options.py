"""The options and arguments that commands share: topics, places, times and durations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

from broker import places
from broker.cli.command import completion
from broker.cli.command.contexts import given
from broker.clock import SystemClock
from broker.errors import BadName, BadRequest
from broker.model import MESSAGE_ID_BYTES, MessageId, TopicId, check_topic
from broker.moments import span_ms, span_s, whole_s
from broker.places import Place

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")

_ID: Final = re.compile(rf"[0-9a-fA-F]{{{2 * MESSAGE_ID_BYTES}}}")


def name_and_value(text: str) -> tuple[str, str]:
    """Read NAME=VALUE. Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def told(read: Callable[[str], Value], name: str = "") -> Callable[[str], Value]:
    """Return a type of a parameter: ``read``, whose ValueError is told to the user, behind the ``name``."""

    def reading(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise click.BadParameter(f"{name}{error}") from error

    return reading


def usage(read: Callable[..., Value], *given: Any) -> Value:
    """Return what ``read`` returns of the given values; its ValueError is a wrong usage. Raises click.UsageError."""
    try:
        return read(*given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def option(
    name: str, kind: Any, default: object, help_text: str, parameter: str = ""
) -> Callable[[Command], Command]:
    """Return an option with a default, which the help shows; ``parameter`` if the option's name is not the parameter's."""
    names = (name, parameter) if parameter else (name,)
    return click.option(*names, type=kind, default=default, show_default=True, help=help_text)


def flag(name: str, help_text: str, parameter: str = "") -> Callable[[Command], Command]:
    """Return an option without a value."""
    return click.option(*filter(None, (name, parameter)), is_flag=True, help=help_text)


def most_option(
    default: int, most: int, help_text: str, name: str = "limit"
) -> Callable[[Command], Command]:
    """Return ``-n``, ``--limit`` of a command that shows at most so many of something."""
    number = click.IntRange(1, most)
    return click.option(
        "-n", "--limit", name, type=number, default=default, show_default=True, help=help_text
    )


# --- Topics ----------------------------------------------------------------------------------------


class TopicType(click.ParamType[TopicId]):
    """A topic: NAMESPACE/TOPIC, or TOPIC alone if the context has a namespace."""

    name = "topic"

    @override
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> TopicId:
        if isinstance(value, TopicId):
            return value
        known = given(ctx)
        topic = topic_of(str(value), known.target.namespace if known.target else "")
        known.topics.append(topic)
        return topic

    @override
    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in completion.topics(given(ctx), incomplete)]


TOPIC: Final = TopicType()


topic_argument = click.argument("topic", type=TOPIC, metavar="NS/TOPIC")


def topic_of(text: str, namespace: str = "") -> TopicId:
    """Read NAMESPACE/TOPIC, or TOPIC in ``namespace`` if that is not empty. Raises click.BadParameter."""
    first, slash, rest = text.partition("/")
    if not slash and not namespace:
        raise click.BadParameter(f"{text!r} has no namespace: write NAMESPACE/TOPIC")
    try:
        return check_topic(first, rest) if slash else check_topic(namespace, first)
    except BadName as error:
        raise click.BadParameter(error.message) from error


# --- Places, times, durations ----------------------------------------------------------------------


def place_option(*names: str, help_text: str) -> Callable[[Command], Command]:
    """Return an option whose value is a place in a topic, see ``place_of``."""
    return click.option(*names, type=told(place_now), metavar="ID|TIME|AGE", help=help_text)


PlaceGiven = MessageId | Place | int
"""The value of a place's option: a message id, maybe with its generation, or ms since 1970."""


def id_option(*names: str, help_text: str) -> Callable[[Command], Command]:
    """Return an option whose value is a message id."""
    return click.option(*names, type=id_type, metavar="ID", help=help_text)


def id_type(text: str) -> MessageId:
    """Read a message id, as click's type of a parameter. Raises click.BadParameter."""
    if not _ID.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a message id of 40 hex digits")
    return bytes.fromhex(text)


def place_now(text: str) -> PlaceGiven:
    """Read a place in a topic, see ``place_of``. Raises ValueError."""
    return place_of(text, SystemClock().now_ms())


def place_of(text: str, now_ms: int) -> PlaceGiven:
    """Read a place in a topic.

    The text has one of these forms: ``1h``, a span of time (see ``moments``), that is an hour ago; ``now``; or any place
    that the broker itself reads: a message id, perhaps with ``@`` and its topic's generation; ms since 1970; a date or time
    of RFC 3339, in UTC if it names no zone.

    Raises:
        ValueError: it is none of these.
    """
    if text == "now":
        return now_ms
    if text[-1:].isalpha() and text[:1].isdecimal():
        with suppress(ValueError):
            return max(0, now_ms - round(span_ms(text)))
    try:
        place = places.place_of(text)
    except BadRequest as error:
        if (text.isdecimal() and len(text) < 20) or "@" in text:
            raise ValueError(error.message) from None
        raise ValueError(
            f"{text!r} is neither a duration (30m, 1h, 2d), a time (2026-01-31T12:00:00Z), "
            "ms since 1970, nor a message id of 40 hex digits"
        ) from None
    return place.id if isinstance(place, Place) and place.generation is None else place


def ttl_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option ``--ttl``, whole seconds."""
    return click.option("--ttl", "ttl_s", type=told(whole_s), metavar="DURATION", help=help_text)


class SpanType(click.ParamType[float]):
    """A span of time in seconds: a number of seconds, or text with a unit, such as 500ms or 2m."""

    name = "duration"

    def __init__(self, min_s: float = 0.0, max_s: float = float("inf")) -> None:
        """Accept spans from ``min_s`` to ``max_s``."""
        self._min_s = min_s
        self._max_s = max_s

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds. Raises click.BadParameter."""
        try:
            seconds = float(value) if isinstance(value, int | float) else span_s(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._min_s <= seconds <= self._max_s:
            most = "" if self._max_s == float("inf") else f" and at most {self._max_s:g} s"
            self.fail(f"{value} is not at least {self._min_s:g} s{most}", param, ctx)
        return seconds


class FiniteRange(click.FloatRange):
    """A number in a range. Click takes ``nan`` for one in any range, and ``inf`` where there is no upper bound."""

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. Raises click.BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number
