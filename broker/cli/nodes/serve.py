"""``broker serve`` and ``broker config``. Each key of the configuration is a flag."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from broker.cli.command.broker_calls import json_option, writes
from broker.cli.command.output import write_table
from broker.cli.command.problems import NotNow
from broker.config import sources
from broker.config.sections import Config, Key, LogFormat, iter_keys
from broker.coordination.ports import InstanceTaken
from broker.errors import (
    BrokerError,
    CannotListen,
    StorageCorrupt,
    UnavailableError,
    install_command,
)

Command = TypeVar("Command", bound=Callable[..., Any])


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
    except InstanceTaken as error:
        raise click.ClickException(f"{error} This node does not start.") from error
    except StorageCorrupt as error:
        if not config.cluster.is_on:
            add_damage_advice(error, config.storage.data_dir)
        raise
    except OSError as error:
        raise click.ClickException(cannot_serve(error, config)) from error
    if reason is not None:
        raise click.ClickException(f"stopped: {reason}")


def _write_config(shown: Mapping[str, Mapping[str, str]]) -> None:
    lines = [(key, each["value"], each["source"]) for key, each in shown.items()]
    write_table(("KEY", "VALUE", "FROM"), lines)


@click.command()
@configured
@writes(_write_config)
def config(file: Path | None, **flags: str | None) -> dict[str, dict[str, str]]:
    """Print the configuration in force, and the source of each value.

    \b
    broker config
    broker config --config broker.toml --port 9000
    BROKER_SERVER__PORT=9000 broker config --json
    """
    lines = resolved(file, flags).lines()
    return {key: {"value": value, "source": source} for key, value, source in lines}


# --- Problems --------------------------------------------------------------------------------------
#
# Each message names the thing, the reason, and the next step.

PRIVILEGED_BELOW: Final = 1024

_OWN_ADDRESS: Final = "--host 127.0.0.1, or --host 0.0.0.0 for all of them"

_OWNER: Final = "Use the user that owns the directory, or name another directory"

_FILE_ADVICE: Final = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "Mount the file system for writing, or name another directory",
    errno.ENOSPC: "Free some space on this disk, or name another directory",
    errno.EDQUOT: "Free some space of this user's quota, or name another directory",
}


def cannot_serve(error: OSError, config: Config) -> str:
    """Return the message for a node that can't listen or open a file."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"can't serve: too many open files; this process may open {limit}. "
            "Raise the limit of open files before the start: ulimit -n 65536"
        )
    if isinstance(error, CannotListen):
        return _cannot_listen(error, config)
    if error.filename is not None:
        return cannot_open(error, config.storage.data_dir, "serve")
    return f"can't serve: {error.strerror or error}"


def _cannot_listen(error: CannotListen, config: Config) -> str:
    host, port, cause = error.host, error.port, error.cause
    flag = "--thrift-port" if port and port == config.transactions.thrift_port else "--port"
    problem = f"can't serve on {host}:{port}"
    if isinstance(cause, socket.gaierror):
        return (
            f"{problem}: no address is known for the name {host!r} ({cause.strerror}). "
            f"Name an address of this machine: {_OWN_ADDRESS}"
        )
    if cause.errno == errno.EADDRINUSE:
        return (
            f"{problem}: another program listens there, perhaps a broker. "
            f"Choose another port: broker serve {flag} {port % 65_535 + 1}"
        )
    if cause.errno == errno.EADDRNOTAVAIL:
        return f"{problem}: this machine has no address {host}. Name one of its own: {_OWN_ADDRESS}"
    if cause.errno == errno.EACCES and port < PRIVILEGED_BELOW:
        return (
            f"{problem}: this user may not listen on ports below {PRIVILEGED_BELOW}. "
            f"Choose a higher port: broker serve {flag} {port + 8000}"
        )
    return f"{problem}: {cause.strerror or cause}"


def cannot_open(error: OSError, directory: Path, what: str) -> str:
    """Return the message for a file below or above a data directory; ``what`` is the word of the command."""
    named = Path(os.fsdecode(error.filename))
    if directory != named and directory not in named.parents and named not in directory.parents:
        return f"can't {what}: {named}: {error.strerror or error}"
    problem = f"can't {what} the data directory {directory}"
    if error.errno in {errno.EEXIST, errno.ENOTDIR}:
        file = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
        kind = "a file" if file.exists() else "a link that leads nowhere"
        return f"{problem}: {file} is {kind}. Name another directory"
    where = "" if named == directory else f" ({named})"
    advice = _FILE_ADVICE.get(error.errno or 0, "Name another directory")
    return f"{problem}: {error.strerror or error}{where}. {advice}"


def add_damage_advice(error: BrokerError, directory: Path) -> None:
    """Add the next step to an error about a damaged data directory; the error of another format names its own."""
    if advice := repair_advice(directory):
        error.add_note(f"See the damage with: broker storage verify {directory}")
        error.add_note(advice)


def repair_advice(directory: Path) -> str:
    """Return the advice to repair a data directory; empty if it has no store, or another release wrote it."""
    from broker.storage.leveldb import files  # noqa: PLC0415 - Slow to import.

    if not files.is_store(directory) or files.other_format(directory) is not None:
        return ""
    return f"Restore a backup, or make a repaired copy with: broker storage repair {directory} COPY"
