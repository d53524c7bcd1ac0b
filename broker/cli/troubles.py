"""Messages on standard error while a command waits for its broker.

A command that retries in silence looks as if it hangs. So it reports the address that it tries, the reason of
the failure, and how long it will go on. It reports once, and again only for another reason or after a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from broker.cli.contexts import BrokerTarget
from broker.cli.output import write_line
from broker.client import Trouble
from broker.client.outcomes import UNREACHED

AGAIN_S: Final = 60.0
"""The same trouble is reported again after this time."""

SOON_S: Final = 1.0
"""With less time left nothing is reported: the error itself comes at once."""


class Teller:
    """Reports trouble to people; machines that read JSON get only the final error."""

    def __init__(
        self,
        url: str,
        target: BrokerTarget | None,
        *,
        as_json: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report trouble with one broker. With ``as_json``, report only to a terminal."""
        self._name = address(url, target)
        self._silent = as_json and not sys.stderr.isatty()
        self._now = now
        self._reported = ""
        self._reported_at = 0.0

    def __call__(self, trouble: Trouble) -> None:
        """Report trouble unless it was reported less than ``AGAIN_S`` ago."""
        if self._silent or (trouble.left_s is not None and trouble.left_s < SOON_S):
            return
        reason, now = trouble_text(self._name, trouble), self._now()
        if reason == self._reported and now - self._reported_at < AGAIN_S:
            return
        self._reported, self._reported_at = reason, now
        write_line(f"broker: {reason}; {_retry_text(trouble.left_s)}, Ctrl-C ends", err=True)


def address(url: str, target: BrokerTarget | None) -> str:
    """Return an address, with its context if it came from one."""
    named = target is not None and target.url == url and target.context
    return f"{url} (context {target.context!r})" if target is not None and named else url


def trouble_text(name: str, trouble: Trouble) -> str:
    """Return the text about a trouble with the broker ``name``."""
    if trouble.error is None:
        return f"still waiting for {name}"
    message = trouble.error.message.rstrip(".")
    if message.startswith(UNREACHED):
        return f"can't reach {name}: {message.removeprefix(UNREACHED)}"
    return f"{name}: {message}"


def _retry_text(left_s: float | None) -> str:
    return "retrying until it works" if left_s is None else f"retrying for {left_s:.0f} s"
