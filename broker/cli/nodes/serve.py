"""``broker serve`` and ``broker config``. Each key of the configuration is a flag."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import click

from broker.cli.command.broker_calls import json_option, writes
from broker.cli.command.options import Command
from broker.cli.command.output import table
from broker.cli.command.problems import NotNow
from broker.config import sources
from broker.config.sections import Key, LogFormat, iter_keys
from broker.errors import TaskFailed, UnavailableError, install_command


def _flag(known: Key) -> Callable[[Command], Command]:
    default = sources.as_text(known.default)
    return click.option(
        known.flag,
        known.dotted.replace(".", "__"),
        metavar=known.name.upper(),
        help=f"{known.doc}  [default: {default or 'empty'}; {known.variable}]",
    )


def configured(command: Command) -> Command:
    """Add ``--config`` and a flag for every key."""
    return configured_by({known.section for known in iter_keys()})(command)


def configured_by(sections: Collection[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--config`` and a flag for every key of some sections."""
    return lambda command: _configured(command, sections)


def _configured(command: Command, sections: Collection[str]) -> Command:
    for known in reversed(list(iter_keys())):
        if known.section in sections:
            command = _flag(known)(command)
    return click.option(
        "--config",
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="BROKER_CONFIG",
        show_envvar=True,
        help="A TOML file with the sections of the configuration.",
    )(command)


def resolved(file: Path | None, flags: dict[str, str | None]) -> sources.LoadedConfig:
    """Return the configuration that the file, the environment and these flags give."""
    dotted = {name.replace("__", ".", 1): text for name, text in flags.items()}
    return sources.load(file=file, environment=os.environ, flags=dotted)


@click.command()
@configured
@json_option
def serve(file: Path | None, as_json: bool, **flags: str | None) -> None:
    """Serve topics until SIGTERM or Ctrl-C, then finish the requests in flight and exit 0.

    Flags override the environment, the environment overrides the file, and the file overrides the
    defaults. To see the values in force: broker config

    SIGHUP reads the configuration again and changes the log level. A second Ctrl-C ends the node at once. With
    --json the log and the line with the node's address are JSON.

    \b
    broker serve
    broker serve --port 9000 --data-dir /var/lib/broker
    broker serve --config broker.toml
    """
    if as_json:
        flags["logs__log_format"] = flags.get("logs__log_format") or LogFormat.JSON.value
    config = resolved(file, flags).config
    try:
        from broker.node import node_process  # noqa: PLC0415 - Only this command needs the server.
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"serving needs the package {error.name!r}: {install_command('server')}"
        ) from error
    try:
        reason = node_process.serve(config, lambda: resolved(file, flags).config, as_json=as_json)
    except UnavailableError as error:
        raise NotNow(error) from error
    if reason is not None:
        raise TaskFailed(f"stopped: {reason}")


_CONFIG = table("KEY", "VALUE", "FROM", fields={"FROM": "source"})


@click.command()
@configured
@writes(lambda shown: _CONFIG([{"key": key, **each} for key, each in shown.items()]))
def config(file: Path | None, **flags: str | None) -> dict[str, dict[str, str]]:
    """Print the configuration in force, and the source of each value.

    \b
    broker config
    broker config --config broker.toml --port 9000
    BROKER_SERVER__PORT=9000 broker config --json
    """
    lines = resolved(file, flags).lines()
    return {key: {"value": value, "source": source} for key, value, source in lines}
