"""The pages of the reference that list the commands and the client, made from their help texts and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import click

from broker.cli.app import cli
from broker.client import (
    Client,
    Reading,
    Settings,
    Stage,
    Subscriber,
    SubscriberOptions,
    TailOptions,
    Transaction,
    TransactionService,
)
from broker.client.cursors import CursorCalls
from broker.client.later import Later
from broker.client.letter_calls import DeadLetterCalls
from broker.config.sections import iter_keys
from chaos.cli import cli as verifier

_COMMANDS_HEAD: Final = """
# Commands

[The command line](../guides/command-line.md) shows how to use the commands, and has their exit codes. `broker COMMAND --help`
shows the same options, and examples.

Most commands use a broker, and have these options, too:

"""

_CLIENT_HEAD: Final = """
# The Python client

[The guide](../guides/client.md) shows how to use the client. Here are all methods and settings of `Client`. `SyncClient`
has the same methods, blocking. `help(Client.publish)` shows the arguments and errors of a method. Every error is a class of
`broker.errors`; [errors](errors.md) names the class of each code.

"""

_COMMON: Final = {"--context", "--url", "--deadline", "--json"}
_KEYS: Final = {key.flag: key.section for key in iter_keys()}

_GROUPS: Final[tuple[tuple[str, str, type], ...]] = (
    ("Methods of the client", "", Client),
    ("Named cursors", "`client.cursors` has these methods.", CursorCalls),
    ("Dead letters", "`client.dead_letters` has these methods.", DeadLetterCalls),
    ("Transactions", "`client.transaction()` returns an object with these methods.", Transaction),
    (
        "The transaction service",
        "`client.transactions` has these methods. `client.transaction()` calls them in the right order.",
        TransactionService,
    ),
    ("Ranges", "`client.read()` returns an object with these methods.", Reading),
    ("Stages", "`client.stage()` returns an object with this method.", Stage),
    ("The queue of `publish_later`", "`client.later` has these methods.", Later),
    ("Subscribers", "`client.subscriber()` returns an object with these methods.", Subscriber),
)

_OPTIONS: Final[tuple[tuple[str, str, type], ...]] = (
    (
        "Settings",
        "`Client(url, …)` takes these settings by name, or `settings=Settings(…)`. Defaults are in brackets.",
        Settings,
    ),
    (
        "Options of a tail",
        "`client.tail(…, options=TailOptions(…))` takes them. Defaults are in brackets.",
        TailOptions,
    ),
    (
        "Options of a subscriber",
        "`client.subscriber(…)` takes them by name, or `options=SubscriberOptions(…)`. Defaults are in brackets.",
        SubscriberOptions,
    ),
)


def commands_page() -> str:
    """Return ``docs/reference/commands.md``, without its first line."""
    publish = cli.get_command(click.Context(cli), "publish")
    assert publish is not None
    common = [option for option in _options(publish) if option.opts[-1] in _COMMON]
    return "".join(
        [
            _COMMANDS_HEAD,
            *map(_option, common),
            *(_command(command, path) for path, command in _commands(cli, ("broker",))),
            *(
                _command(command, path)
                for path, command in _commands(verifier, ("broker", "chaos"))
            ),
        ]
    )


def _commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and (path, name) != (("broker",), "chaos"):
            yield from _commands(found, (*path, name))


def _command(command: click.Command, path: tuple[str, ...]) -> str:
    name = " ".join(path)
    arguments = " ".join(command.collect_usage_pieces(click.Context(command))[1:])
    usage = f"{name} {arguments}".strip()
    if len(usage) > 120:
        usage = f"{name} NAME..."
    parts = [
        f"\n## {name}\n\n{_plain(command.get_short_help_str(limit=300))}\n\n```text\n{usage}\n```\n"
    ]
    own = _options(command)
    if {option.opts[-1] for option in own} >= _COMMON:
        own = [option for option in own if option.opts[-1] not in _COMMON]
    if any(option.opts[-1] == "--config" for option in own):
        sections = dict.fromkeys(_KEYS[o.opts[-1]] for o in own if o.opts[-1] in _KEYS)
        linked = ", ".join(f"[`{section}`](config.md#{section})" for section in sections)
        parts.append(f"\nThe keys of the configuration are options, too: {linked}.\n")
        own = [option for option in own if option.opts[-1] not in _KEYS]
    if own:
        parts.append("\n" + "".join(map(_option, own)))
    return "".join(parts)


def _options(command: click.Command) -> list[click.Option]:
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]


def _option(option: click.Option) -> str:
    words = [*option.opts, *option.secondary_opts]
    names = ", ".join(f"`{word}`" for word in words)
    value = "" if option.is_flag else f" {_value(option)}"
    default = option.default if not option.is_flag else None
    told = (
        isinstance(default, int | float | str)
        and default != ""
        and "[default" not in (option.help or "")
    )
    after = f" The default is `{default}`." if told else ""
    meaning = f": {_plain(option.help).rstrip('.')}." if option.help else "."
    return f"* {names}{value}{meaning}{after}\n"


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return (
            "`" + "|".join(map(str, option.type.choices)) + "`"
            if len(option.type.choices) < 9
            else "`NAME`"
        )
    return f"`{option.make_metavar(click.Context(click.Command('none')))}`".replace(" RANGE`", "`")


def _plain(text: str) -> str:
    """Return a help text as one line of Markdown."""
    line = re.sub(r"\s+", " ", text.replace("\b", "")).strip()
    line = re.sub(r"\s*\[default: ([^\]]*)\]", r" The default: \1.", line)
    return re.sub(r"\s*\[env var: (\w+)\]", r" The variable `\1` sets it, too.", line).replace(
        "``", "`"
    )


def client_page() -> str:
    """Return ``docs/reference/client.md``, without its first line."""
    methods = [_methods(*group) for group in _GROUPS]
    options = [_settings(*group) for group in _OPTIONS]
    return _CLIENT_HEAD + "\n".join([*methods, *options])


def _methods(title: str, lead: str, owner: type) -> str:
    rows = [
        f"| `{name}` | {_first_line(inspect.getattr_static(owner, name))} |\n"
        for name in sorted(dir(owner))
        if not name.startswith("_")
    ]
    head = f"## {title}\n\n" + (f"{lead}\n\n" if lead else "")
    return head + "| name | meaning |\n|---|---|\n" + "".join(rows)


def _settings(title: str, lead: str, owner: type) -> str:
    docs = _attributes(owner)
    items = [
        f"* `{field.name}`{_default(field.default)}: {docs[field.name]}\n"
        for field in fields(owner)
    ]
    return f"## {title}\n\n{lead}\n\n" + "".join(items)


def _attributes(owner: type) -> dict[str, str]:
    """Return the meaning of each attribute, by the section *Attributes* of the docstring."""
    section = inspect.getdoc(owner) or ""
    section = section.partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w)", section, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        names, _, meaning = re.sub(r"\s+", " ", entry).partition(": ")
        for name in names.split(", "):
            found[name] = meaning.strip().replace("``", "`")
    return found


def _default(value: Any) -> str:
    return "" if value in ("", ()) else f" (`{value!r}`)"


def _first_line(documented: Any) -> str:
    line = (inspect.getdoc(documented) or "").partition("\n")[0]
    return line.replace("``", "`").replace("|", "\\|")
