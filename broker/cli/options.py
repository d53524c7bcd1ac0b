"""The options and arguments that commands share: the broker, topics, places, times and durations."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from typing_extensions import override

from broker import places
from broker.cli import completion, contexts
from broker.cli.given_options import given
from broker.cli.troubles import Teller
from broker.client import Settings, SyncClient
from broker.clock import SystemClock
from broker.config.sources import check_environment
from broker.errors import BadName, BadRequest, UnavailableError
from broker.escapes import escaped
from broker.model import MESSAGE_ID_BYTES, MessageId, TopicId, check_topic
from broker.moments import span_ms, span_s, whole_s
from broker.places import Place

Command = TypeVar("Command", bound=Callable[..., Any])

_ID: Final = re.compile(rf"[0-9a-fA-F]{{{2 * MESSAGE_ID_BYTES}}}")


class NotNow(Exception):
    """A service that this command itself needs (storage, ZooKeeper) is not available now.

    It differs from a broker that can't be reached: there the advice is to start a broker.
    """

    def __init__(self, error: UnavailableError) -> None:
        super().__init__(error.message)
        self.error = error


class DoneInPart(click.ClickException):
    """A command failed after it had done a part of its work, or may have done it: its outcome is unknown."""


# --- The broker ------------------------------------------------------------------------------------


def to_broker(command: Command) -> Command:
    """Add the options of every command that speaks to a broker.

    The command gets ``url``, ``deadline_s`` and ``as_json``. ``connect`` and ``client_settings`` find the
    certificates in the context by themselves.
    """
    context = click.option(
        "--context",
        expose_value=False,
        is_eager=True,
        callback=_note_context,
        shell_complete=completion.contexts,
        metavar="NAME",
        help="Use the broker of this context, see: broker context --help.  [env var: BROKER_CONTEXT]",
    )
    url = click.option(
        "--url",
        envvar="BROKER_URL",
        is_eager=True,
        callback=_resolve,
        show_envvar=True,
        help="The broker's address, or the addresses of a cluster's nodes with commas between them.  "
        f"[default: the current context, or {contexts.URL_DEFAULT}]",
    )
    deadline = click.option(
        "--deadline",
        "deadline_s",
        type=SpanType(0.1),
        default=30.0,
        show_default=True,
        help="Seconds that a request may take, with its retries.",
    )
    return context(url(deadline(json_option(command))))


def _note_context(context: click.Context, _: click.Parameter, name: str | None) -> None:
    given(context).typed_context = name or ""
    _check_one_address(context)


def _check_one_address(context: click.Context) -> None:
    known = given(context)
    if known.typed_context and known.typed_url and not context.resilient_parsing:
        raise click.UsageError("Give --url or --context, not both.", context)


def _resolve(context: click.Context, _: click.Parameter, url: str | None) -> str:
    """Return the address to use, and note where it came from. Raises ConfigError, click.UsageError."""
    check_environment(os.environ)  # A misspelt BROKER_URL would have no effect, and no error.
    known = given(context)
    known.command = context.command_path.partition(" ")[2]
    typed = context.get_parameter_source("url") is ParameterSource.COMMANDLINE
    known.typed_url = (url or "") if typed else ""
    _check_one_address(context)
    asked = contexts.BrokerOptions(
        url=known.typed_url,
        context=known.typed_context,
        url_of_environment="" if typed else (url or ""),
        context_of_environment=os.environ.get("BROKER_CONTEXT", ""),
    )
    # The first address that is given decides. The file of contexts is read only if it is needed, so a
    # damaged file does no harm to commands that don't need it.
    first = asked.url or (asked.url_of_environment and not asked.context)
    known.target = contexts.target(asked, contexts.Contexts() if first else contexts.known())
    return known.target.url


def json_option(command: Command) -> Command:
    """Add ``--json`` to a command. The option may also stand before the command's name."""
    return click.option(
        "--json", "as_json", is_flag=True, callback=_note_json, help="Write JSON, for machines."
    )(command)


def take_json(group: click.Group) -> None:
    """Allow ``--json`` also after the name of a group, before the name of its command."""
    option = click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_note_json,
        help="Write JSON, for machines; may also follow the command.",
    )
    group.params.append(option)
    for command in group.commands.values():
        if isinstance(command, click.Group):
            take_json(command)


def _note_json(context: click.Context, _: click.Parameter, flag: bool) -> bool:
    known = given(context)
    known.as_json = known.as_json or bool(flag)
    return known.as_json


def yes_option(command: Command) -> Command:
    """Add ``--yes`` to a command that calls ``confirm``."""
    return click.option("--yes", is_flag=True, help="Don't ask for confirmation.")(command)


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask the user before a change. Raises click.Abort, or click.UsageError if the command can't ask."""
    if yes:
        return
    if as_json:
        raise click.UsageError("With --json the command can't ask: give --yes, too.")
    click.confirm(escaped(question), abort=True, err=True)


def name_and_value(text: str) -> tuple[str, str]:
    """Read NAME=VALUE. Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def client_settings(url: str, deadline_s: float) -> Settings:
    """Return the settings of a client of the broker. Raises click.BadParameter if an address is not valid."""
    try:
        contexts.check_urls(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=_source()) from error
    target = given().target
    ca_file = target.ca_file if target is not None and target.url == url else ""
    return Settings(url=url, deadline_s=deadline_s, ca_file=ca_file)


def _source() -> str:
    target = given().target
    return "--url" if target is None else target.source


def connect(url: str, deadline_s: float) -> SyncClient:
    """Return a client that reports on standard error why it waits.

    Raises:
        click.BadParameter: the address is not valid.
    """
    return SyncClient(settings=client_settings(url, deadline_s), on_trouble=teller(url))


def teller(url: str) -> Teller:
    """Return the reporter of a client's trouble, see ``troubles``."""
    known = given()
    return Teller(url, known.target, as_json=known.as_json)


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


def topic_argument(command: Command) -> Command:
    """Add the argument NAMESPACE/TOPIC."""
    return click.argument("topic", type=TOPIC, metavar="NS/TOPIC")(command)


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
    return click.option(*names, type=_place, metavar="ID|TIME|AGE", help=help_text)


PlaceGiven = MessageId | Place | int
"""The value of a place's option: a message id, maybe with its generation, or ms since 1970."""


def _place(text: str) -> PlaceGiven:
    try:
        return place_of(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def id_option(*names: str, help_text: str) -> Callable[[Command], Command]:
    """Return an option whose value is a message id."""
    return click.option(*names, type=id_type, metavar="ID", help=help_text)


def id_type(text: str) -> MessageId:
    """Read a message id, as click's type of a parameter. Raises click.BadParameter."""
    if not _ID.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a message id of 40 hex digits")
    return bytes.fromhex(text)


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
    return click.option("--ttl", "ttl_s", type=_seconds, metavar="DURATION", help=help_text)


def _seconds(text: str) -> int:
    try:
        return whole_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


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
