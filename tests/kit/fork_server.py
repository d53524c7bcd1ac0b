"""Processes that ``multiprocessing`` forks from a server with their modules imported: a start costs milliseconds."""

from __future__ import annotations

import multiprocessing
from typing import Final

CONTEXT: Final = multiprocessing.get_context("forkserver")
_MODULES: Final[list[str]] = []


def preload(module: str) -> None:
    """Let the server process import a module. It has an effect only before the first process starts."""
    _MODULES.append(module)
    CONTEXT.set_forkserver_preload(_MODULES)
