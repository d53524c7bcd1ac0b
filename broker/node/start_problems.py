"""Why a node, or a command on its store, can't begin: messages that name the thing, the reason, and the next step."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from broker.config.sections import Config
from broker.coordination.ports import InstanceTaken
from broker.errors import BrokerError, CannotListen, StorageCorrupt, TaskFailed
from broker.http.certificates import BadCertificates
from broker.storage.leveldb import files

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
    if not files.is_store(directory) or files.other_format(directory) is not None:
        return ""
    return f"Restore a backup, or make a repaired copy with: broker storage repair {directory} COPY"


@contextmanager
def told(config: Config) -> Iterator[None]:
    """Turn the errors of a start into TaskFailed, and add the next step to StorageCorrupt."""
    try:
        yield
    except BadCertificates as error:
        raise TaskFailed(f"can't serve: {error}") from error
    except InstanceTaken as error:
        raise TaskFailed(f"{error} This node does not start.") from error
    except StorageCorrupt as error:
        if not config.cluster.is_on:
            add_damage_advice(error, config.storage.data_dir)
        raise
    except OSError as error:
        raise TaskFailed(cannot_serve(error, config)) from error
