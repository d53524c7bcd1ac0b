"""``broker context``: give brokers names, and choose the broker that commands use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.command import completion, contexts
from broker.cli.command.broker_calls import Json, writes
from broker.cli.command.contexts import Context, Contexts
from broker.cli.command.options import flag, told
from broker.cli.command.output import properties, table
from broker.errors import BadName
from broker.model import check_namespace
from broker.secret import read_secret

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


_name_argument = click.argument("name", shell_complete=completion.contexts)


@click.group()
def context() -> None:
    """Give brokers names, and choose the broker that commands use.

    A context has an address. It may have a file of certificates, the path of a file with your token (never the
    token itself), and a namespace for topics that are named without one. --url or --context comes first, then BROKER_URL, then BROKER_CONTEXT, then the context in use.

    \b
    broker context add prod --url https://broker1:8080,https://broker2:8080 --namespace audit
    broker context use prod
    broker tail logins --context prod
    """


def _namespace(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        return check_namespace(text) if text else ""
    except BadName as error:
        raise click.BadParameter(error.message) from error


def _token_file(_: click.Context, __: click.Parameter, file: str | None) -> str | None:
    if file is not None:
        told(read_secret)(file)
    return file


@context.command()
@click.argument("name")
@click.option(
    "--url",
    required=True,
    callback=lambda _, __, text: told(contexts.check_urls)(text),
    help="The broker's address, as in every command.",
)
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    default=None,
    help="Certificates to trust for https addresses, in PEM.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    default=None,
    callback=_token_file,
    help="A file with your token, which you alone can read (mode 0600).",
)
@click.option(
    "--namespace",
    default="",
    callback=_namespace,
    help="The namespace of topics that are named without one.",
)
@flag("--replace", "Replace a context of that name.")
@writes()
def add(
    name: str,
    url: str,
    ca_file: str | None,
    token_file: str | None,
    namespace: str,
    replace: bool,
) -> Json:
    """Add a context. To use it: broker context use NAME.

    \b
    broker context add prod --url https://broker1:8080 --ca-file ca.pem --namespace audit
    broker context add ops --url https://broker1:8080 --ca-file ca.pem --token-file ~/.config/broker/ops.token
    """
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r}: a name has letters, digits and _ . -")
    file = contexts.path()
    known = contexts.load(file)
    if name in known.contexts and not replace:
        raise click.ClickException(
            f"context {name!r} exists; see it with: broker context show {name}; "
            "replace it with --replace"
        )
    made = Context(url, ca_file or "", namespace, token_file or "")
    contexts.save(file, known.added(name, made))
    return _json(name, made, known)


@context.command()
@_name_argument
@writes()
def use(name: str) -> Json:
    """Use a context in all commands from now on.

    \b
    broker context use prod
    """
    file, known, found = _found(name)
    chosen = Contexts(name, known.contexts)
    contexts.save(file, chosen)
    return _json(name, found, chosen)


_LIST = table(
    *("", "NAME", "URL", "NAMESPACE", "CA FILE", "TOKEN FILE"),
    fields={"": lambda each: "*" if each["current"] else None},
)


@context.command(name="list")
@writes(_LIST)
def list_() -> list[Json]:
    """List all contexts; a star marks the one in use.

    \b
    broker context list
    """
    known = contexts.known()
    return [_json(name, one, known) for name, one in known.contexts.items()]


@context.command()
@click.argument("name", required=False, shell_complete=completion.contexts)
@writes(properties("name", "current", "url", "ca_file", "token_file", "namespace"))
def show(name: str | None) -> Json:
    """Show a context; without NAME, the one in use.

    \b
    broker context show prod
    """
    if name is None:
        name = contexts.known().current
        if not name:
            raise click.ClickException("no context is in use; choose one: broker context use NAME")
    _, known, found = _found(name)
    return _json(name, found, known)


@context.command()
@_name_argument
@writes()
def remove(name: str) -> Json:
    """Remove a context. If it was in use, no context is in use afterwards.

    \b
    broker context remove prod
    """
    file, known, _ = _found(name)
    contexts.save(file, known.removed(name))
    return {"removed": name}


def _found(name: str) -> tuple[Path, Contexts, Context]:
    """Return the file, all contexts, and one of them. Raises ConfigError."""
    file = contexts.path()
    known = contexts.load(file)
    return file, known, known.named(name)


def _json(name: str, one: Context, known: Contexts) -> dict[str, Any]:
    """Return a context as JSON; a field that is not set is null."""
    return {
        "name": name,
        "current": name == known.current,
        "url": one.url,
        "ca_file": one.ca_file or None,
        "token_file": one.token_file or None,
        "namespace": one.namespace or None,
    }
