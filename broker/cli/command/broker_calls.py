"""The call of a command: the options that name its broker, its client, and the form of its output.

Most commands are one call and the layout of its answer. Such a command is a function that asks the client and returns
the answer as JSON; ``asks`` makes the rest of it::

    @topics.command()
    @topic_argument
    @asks("{deleted} is gone", question="Delete {topic} and all its messages?")
    def delete(client: SyncClient, topic: TopicId) -> Json:
        client.delete_topic(topic)
        return {"deleted": "/".join(topic)}
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
from click.core import ParameterSource

from broker.cli.command import completion, contexts
from broker.cli.command.command_token import token_of
from broker.cli.command.contexts import BrokerTarget, given
from broker.cli.command.options import Command, SpanType, flag, option
from broker.cli.command.output import write_json, write_line
from broker.client import Settings, SyncClient, Trouble
from broker.client.outcomes import UNREACHED
from broker.client.transport import trusting
from broker.config.sections import ConfigError
from broker.config.sources import check_environment
from broker.escapes import escaped
from broker.model import TopicId

Json = Mapping[str, Any]
Layout = str | Callable[[Any], object] | None
"""How people read an answer: as a line on standard error, or as a function writes it or returns the line."""


@dataclass(frozen=True, slots=True)
class BrokerCall:
    """The broker that a command was given, and the form of its output."""

    url: str
    deadline_s: float
    as_json: bool

    @property
    def settings(self) -> Settings:
        """The settings of a client of the broker. Raises click.BadParameter if an address is not valid.

        Raises ConfigError, too, if the context's certificates or the token can't be read.
        """
        target = given().target
        try:
            contexts.check_urls(self.url)
        except ValueError as error:
            source = "--url" if target is None else target.source
            raise click.BadParameter(str(error), param_hint=source) from error
        ca_file = target.ca_file if target is not None and target.url == self.url else ""
        if target is not None and ca_file:
            try:
                trusting(ca_file)
            except ValueError as error:
                raise ConfigError(f"{target.source}: {error}") from error
        found = token_of(given())
        return Settings(
            url=self.url,
            deadline_s=self.deadline_s,
            ca_file=ca_file,
            token=found.token,
            token_file=found.token_file,
        )

    @property
    def teller(self) -> Teller:
        """The reporter of a client's trouble on standard error."""
        return teller(self.url)

    def client(self) -> SyncClient:
        """Return a client that reports why it waits. Raises click.BadParameter if an address is not valid."""
        return SyncClient(settings=self.settings, on_trouble=self.teller)

    def write(self, answer: Any, layout: Layout = None) -> None:
        """Write an answer as JSON, or in a layout."""
        write_answer(answer, layout, as_json=self.as_json)


def write_answer(answer: Any, layout: Layout, *, as_json: bool) -> None:
    """Write an answer as JSON, or in a layout."""
    if as_json:
        write_json(answer)
    elif isinstance(layout, str):
        write_line(layout, err=True)
    elif layout is not None:
        layout(answer)


def _note_json(context: click.Context, _: click.Parameter, flag: bool) -> bool:
    known = given(context)
    known.as_json = known.as_json or bool(flag)
    return known.as_json


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note_json, help="Write JSON, for machines."
)
"""The option may also stand before the command's name, see ``take_json``."""
yes_option = flag("--yes", "Don't ask for confirmation.")
"""The option of a command that calls ``confirm``."""


# --- Commands that are one call --------------------------------------------------------------------


def asks(
    layout: Layout = None, *, question: str | Callable[..., str] = ""
) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function that gets the client and the parameters, and returns the answer.

    A layout is a line, or a function that writes the answer or returns a line. The line has parameters and fields of the
    answer in braces. An answer that only machines read may be a function, which is called for them. With a ``question``,
    which names parameters in braces or is a function of them, the command asks before; it has ``--yes``.
    """

    def made(ask: Callable[..., Any]) -> Any:
        @functools.wraps(ask)
        def run(call: BrokerCall, **parameters: Any) -> None:
            if question:
                yes = parameters.pop("yes")
                words = (
                    question.format(**_named(parameters))
                    if isinstance(question, str)
                    else question(**parameters)
                )
                confirm(words, yes=yes, as_json=call.as_json)
            with call.client() as client:
                answer = ask(client, **parameters)
                if callable(answer):
                    answer = answer() if call.as_json else {}
            _write(answer, layout, parameters, as_json=call.as_json)

        command = to_broker(run)
        return yes_option(command) if question else command

    return made


def _write(answer: Any, layout: Layout, parameters: Json, *, as_json: bool) -> None:
    if as_json:
        write_json(answer)
        return
    line = layout(answer) if callable(layout) else layout
    if isinstance(line, str):
        write_line(line.format(**{**_named(parameters), **answer}), err=True)


def _named(parameters: Json) -> dict[str, Any]:
    """Return parameters with each topic as NAMESPACE/TOPIC."""
    return {
        name: "/".join(value) if isinstance(value, TopicId) else value
        for name, value in parameters.items()
    }


def writes(layout: Layout = None) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function that returns an answer; add ``--json``."""

    def made(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def run(*, as_json: bool, **parameters: Any) -> None:
            write_answer(command(**parameters), layout, as_json=as_json)

        return json_option(run)

    return made


# --- The options -----------------------------------------------------------------------------------


def to_broker(command: Callable[..., Any]) -> Any:
    """Add the options of every command that speaks to a broker. The command gets them as its ``BrokerCall``."""

    @functools.wraps(command)
    def run(*, url: str, deadline_s: float, as_json: bool, **parameters: Any) -> Any:
        return command(BrokerCall(url, deadline_s, as_json), **parameters)

    context = click.option(
        "--context",
        expose_value=False,
        is_eager=True,
        callback=_note_context,
        shell_complete=completion.contexts,
        metavar="NAME",
        help="Use the broker of this context, see: broker context --help.  [env var: BROKER_CONTEXT]",
    )
    address = click.option(
        "--url",
        envvar="BROKER_URL",
        is_eager=True,
        callback=_resolve,
        show_envvar=True,
        help="The broker's address, or the addresses of a cluster's nodes with commas between them.  "
        f"[default: the current context, or {contexts.URL_DEFAULT}]",
    )
    token = click.option(
        "--token-file",
        type=click.Path(dir_okay=False, resolve_path=True),
        expose_value=False,
        callback=_note_token_file,
        metavar="FILE",
        help="A file with your token, which you alone can read (mode 0600); the context may name it, too.  "
        "[env var: BROKER_TOKEN_FILE; or a token in BROKER_TOKEN]",
    )
    deadline = option(
        "--deadline",
        SpanType(0.1),
        30.0,
        "Seconds that a request may take, with its retries.",
        "deadline_s",
    )
    return context(address(token(deadline(json_option(run)))))


def _note_token_file(context: click.Context, _: click.Parameter, file: str | None) -> None:
    given(context).typed_token_file = file or ""


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


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask the user before a change. Raises click.Abort, or click.UsageError if the command can't ask."""
    if yes:
        return
    if as_json:
        raise click.UsageError("With --json the command can't ask: give --yes, too.")
    click.confirm(escaped(question), abort=True, err=True)


# --- Trouble ---------------------------------------------------------------------------------------

AGAIN_S: Final = 60.0
"""The same trouble is reported again after this time."""

SOON_S: Final = 1.0
"""With less time left nothing is reported: the error itself comes at once."""


class Teller:
    """Reports trouble to people; machines that read JSON get only the final error.

    A command that retries in silence looks as if it hangs. So this reports the address that it tries, the reason of
    the failure, and how long it will go on. It reports once, and again only for another reason or after a minute.
    """

    def __init__(
        self,
        url: str,
        target: BrokerTarget | None,
        *,
        as_json: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report trouble with one broker. With ``as_json``, report only to a terminal."""
        self._name = address(url, target)
        self._silent = as_json and not sys.stderr.isatty()
        self._now = now
        self._reported = ""
        self._reported_at = 0.0

    def __call__(self, trouble: Trouble) -> None:
        """Report trouble unless it was reported less than ``AGAIN_S`` ago."""
        if self._silent or (trouble.left_s is not None and trouble.left_s < SOON_S):
            return
        reason, now = trouble_text(self._name, trouble), self._now()
        if reason == self._reported and now - self._reported_at < AGAIN_S:
            return
        self._reported, self._reported_at = reason, now
        write_line(f"broker: {reason}; {_retry_text(trouble.left_s)}, Ctrl-C ends", err=True)


def address(url: str, target: BrokerTarget | None) -> str:
    """Return an address, with its context if it came from one."""
    named = target is not None and target.url == url and target.context
    return f"{url} (context {target.context!r})" if target is not None and named else url


def trouble_text(name: str, trouble: Trouble) -> str:
    """Return the text about a trouble with the broker ``name``."""
    if trouble.error is None:
        return f"still waiting for {name}"
    message = trouble.error.message.rstrip(".")
    if message.startswith(UNREACHED):
        return f"can't reach {name}: {message.removeprefix(UNREACHED)}"
    return f"{name}: {message}"


def _retry_text(left_s: float | None) -> str:
    return "retrying until it works" if left_s is None else f"retrying for {left_s:.0f} s"


def teller(url: str) -> Teller:
    """Return the reporter of a client's trouble on standard error."""
    known = given()
    return Teller(url, known.target, as_json=known.as_json)
