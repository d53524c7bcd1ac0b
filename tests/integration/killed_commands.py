"""Run ``broker export`` and ``broker import`` in processes that are killed at any of their steps.

Steps are the moments before and after a publish, and before and after each change of a file.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker import small_files as files
from broker.cli import app
from broker.client import SyncClient
from broker.transfer import exports, imports
from broker.transfer.formats import FORMATS
from tests.kit.fork_server import CONTEXT, preload

CHUNK = 10
"""The number of messages in a chunk of these processes."""
DEADLINE_S = 60

preload(__name__)


def died(url: str, step: int, *words: str) -> bool:
    """Run a command that is killed at a step, from 1; return False if it ended before that step."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        process = CONTEXT.Process(target=_run, args=(url, step, words, errors), daemon=True)
        process.start()
        process.join(DEADLINE_S)
        assert process.exitcode in (0, -signal.SIGKILL), errors.read_text()
        return process.exitcode != 0


def _run(url: str, kill_at: int, words: tuple[str, ...], errors: Path) -> None:
    os.environ["BROKER_URL"] = url
    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    exports.CHUNK_MESSAGES_MAX = imports.CHUNK_MESSAGES_MAX = CHUNK  # type: ignore[misc]
    left = kill_at

    def step() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any, **named: Any) -> Any:
            step()
            result = call(*arguments, **named)
            step()
            return result

        return stepping

    owners: list[tuple[Any, tuple[str, ...]]] = [
        (files, ("write_json", "place")),
        (SyncClient, ("publish",)),
        *((type(kind), ("append", "finish", "discard")) for kind in FORMATS.values()),
    ]
    for owner, names in owners:
        for name in names:
            setattr(owner, name, around(getattr(owner, name)))
    app.run(list(words))
