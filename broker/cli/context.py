"""``broker context``: give brokers names, and choose the broker that commands use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from broker.cli import completion, contexts
from broker.cli.contexts import Context, Contexts
from broker.cli.options import json_option
from broker.cli.output import write_json, write_properties, write_table
from broker.errors import BadName
from broker.model import check_namespace

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


_name_argument = click.argument("name", shell_complete=completion.contexts)


@click.group()
def context() -> None:
    """Give brokers names, and choose the broker that commands use.

    A context has an address. It may have a file of certificates, and a namespace for topics that are named
    without one. --url or --context comes first, then BROKER_URL, then BROKER_CONTEXT, then the context in use.

    \b
    broker context add prod --url https://broker1:8080,https://broker2:8080 --namespace audit
    broker context use prod
    broker tail logins --context prod
    """  # noqa: D301


def _url(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        return contexts.check_urls(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _namespace(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        return check_namespace(text) if text else ""
    except BadName as error:
        raise click.BadParameter(error.message) from error


@context.command()
@click.argument("name")
@click.option(
    "--url", required=True, callback=_url, help="The broker's address, as in every command."
)
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    default=None,
    help="Certificates to trust for https addresses, in PEM.",
)
@click.option(
    "--namespace",
    default="",
    callback=_namespace,
    help="The namespace of topics that are named without one.",
)
@click.option("--replace", is_flag=True, help="Replace a context of that name.")
@json_option
def add(
    name: str, url: str, ca_file: str | None, namespace: str, replace: bool, as_json: bool
) -> None:
    """Add a context. To use it: broker context use NAME.

    \b
    broker context add prod --url https://broker1:8080 --ca-file ca.pem --namespace audit
    """  # noqa: D301
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r}: a name has letters, digits and _ . -")
    file = contexts.path()
    known = contexts.load(file)
    if name in known.contexts and not replace:
        raise click.ClickException(
            f"context {name!r} exists; see it with: broker context show {name}; "
            "replace it with --replace"
        )
    made = Context(url, ca_file or "", namespace)
    contexts.save(file, known.added(name, made))
    if as_json:
        write_json(_json(name, made, known))


@context.command()
@_name_argument
@json_option
def use(name: str, as_json: bool) -> None:
    """Use a context in all commands from now on.

    \b
    broker context use prod
    """  # noqa: D301
    file, known, found = _found(name)
    chosen = Contexts(name, known.contexts)
    contexts.save(file, chosen)
    if as_json:
        write_json(_json(name, found, chosen))


@context.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List all contexts; a star marks the one in use.

    \b
    broker context list
    """  # noqa: D301
    known = contexts.known()
    if as_json:
        write_json([_json(name, one, known) for name, one in known.contexts.items()])
        return
    rows = [
        ("*" if name == known.current else "", name, one.url, one.namespace, one.ca_file)
        for name, one in known.contexts.items()
    ]
    write_table(("", "NAME", "URL", "NAMESPACE", "CA FILE"), rows)


@context.command()
@click.argument("name", required=False, shell_complete=completion.contexts)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show a context; without NAME, the one in use.

    \b
    broker context show prod
    """  # noqa: D301
    if name is None:
        name = contexts.known().current
        if not name:
            raise click.ClickException("no context is in use; choose one: broker context use NAME")
    _, known, found = _found(name)
    shown = _json(name, found, known)
    if as_json:
        write_json(shown)
    else:
        write_properties({part: value for part, value in shown.items() if value not in {"", None}})


@context.command()
@_name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a context. If it was in use, no context is in use afterwards.

    \b
    broker context remove prod
    """  # noqa: D301
    file, known, _ = _found(name)
    contexts.save(file, known.removed(name))
    if as_json:
        write_json({"removed": name})


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
        "namespace": one.namespace or None,
    }
