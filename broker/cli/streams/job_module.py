"""Load a job from a module of the user: ``module:name`` is a Job, or a function that returns one."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from broker.errors import install_command

if TYPE_CHECKING:
    from broker.streams import Job


def load(target: str) -> Job:
    """Return the job of ``module:name``; modules of the current folder come first. Raises click.ClickException."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise click.UsageError(
            f"{target!r} is not MODULE:NAME; for example, counting:job is the job named job in counting.py."
        )
    job = _class_of_jobs()
    module = _imported(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.ClickException(
                f"the module {module_name} has no {name}. {_job_names(module, job)}"
            )
        found = getattr(found, part)
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise click.ClickException(f"{target} failed: {_error_text(error)}") from error
    if not isinstance(found, job):
        raise click.ClickException(
            f"{target} is not a job but has type {type(found).__name__}: name a Job, as StreamBuilder.build() returns it, "
            "or a function that returns one."
        )
    return found


def missing(error: ModuleNotFoundError) -> click.ClickException:
    """Return the error about a missing package of stream jobs. Raises ``error`` if the module is our own."""
    package = (error.name or "").partition(".")[0]
    if package == "broker":
        raise error
    return click.ClickException(
        f"stream jobs need the package {package!r} of the extra 'streams': {install_command('streams')}"
    )


def _class_of_jobs() -> type[Job]:
    try:
        from broker.streams import Job  # noqa: PLC0415 - The extra may be missing.
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return Job


def _imported(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in {name, name.partition(".")[0]}:
            raise click.ClickException(
                f"there is no module {error.name} in {folder} or in Python's path."
            ) from error
        raise click.ClickException(
            f"the module {name} can't be imported: {_error_text(error)}"
        ) from error


def _error_text(error: Exception) -> str:
    """Return an error's text, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _job_names(module: Any, job: type[Job]) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, job))
    return f"Its jobs are: {', '.join(names)}." if names else "It has no jobs."
