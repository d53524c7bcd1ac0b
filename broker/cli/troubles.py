"""What is said on standard error while a command waits for its broker.

A command that tries again in silence looks like one that hangs. So it says which address it tries, why that
did not work, and for how long it goes on: once, and again only for another reason or after a while.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import click

from broker.cli.contexts import BrokerTarget
from broker.client import Trouble
from broker.client.outcomes import UNREACHED

AGAIN_S: Final = 60.0
"""After so long the same trouble is told once more."""

SOON_S: Final = 1.0
"""With less time left nothing is told: the error itself comes at once."""


class Teller:
    """Tells people of trouble; machines that read JSON get only the error in the end."""

    def __init__(
        self,
        url: str,
        target: BrokerTarget | None,
        *,
        as_json: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Speak of one broker; in JSON, only to somebody who looks at a terminal."""
        self._name = address(url, target)
        self._silent = as_json and not sys.stderr.isatty()
        self._now = now
        self._told = ""
        self._told_at = 0.0

    def __call__(self, trouble: Trouble) -> None:
        """Tell of trouble unless it was told a moment ago."""
        if self._silent or (trouble.left_s is not None and trouble.left_s < SOON_S):
            return
        reason, now = said(self._name, trouble), self._now()
        if reason == self._told and now - self._told_at < AGAIN_S:
            return
        self._told, self._told_at = reason, now
        click.echo(f"broker: {reason}; {_patience(trouble.left_s)}, Ctrl-C ends", err=True)


def address(url: str, target: BrokerTarget | None) -> str:
    """Return an address, and the context that it is of."""
    named = target is not None and target.url == url and target.context
    return f"{url} (context {target.context!r})" if target is not None and named else url


def said(name: str, trouble: Trouble) -> str:
    """Return what is the matter with the broker of a name."""
    if trouble.error is None:
        return f"still waiting for {name}"
    message = trouble.error.message.rstrip(".")
    if message.startswith(UNREACHED):
        return f"can't reach {name}: {message.removeprefix(UNREACHED)}"
    return f"{name}: {message}"


def _patience(left_s: float | None) -> str:
    return "trying until it works" if left_s is None else f"trying for {left_s:.0f} s"
