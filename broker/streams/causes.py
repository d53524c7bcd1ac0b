"""Find the lines that say why a job died in Spark's error, which is a page with traces and plans. Pure."""

from __future__ import annotations

import re
from typing import Final

LINES_MAX: Final = 8
_PLAN: Final = "\n=== Streaming Query ==="
_TRACE: Final = "Traceback (most recent call last):"
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}")
_BEFORE: Final = re.compile(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_OWN: Final = "broker.streams.failures.Failed: "


def cause_of(text: str) -> str:
    """Return the first lines of the cause: type and text of an error of Python, else Spark's own message."""
    message = _STATE.sub("", text.partition(_PLAN)[0])
    message = _BEFORE.sub("", message, count=1)
    if _TRACE in message:
        raised = _raised(message.rpartition(_TRACE)[2])
        message = raised or message
    lines = [line.rstrip() for line in message.strip().splitlines()]
    return "\n".join(lines[:LINES_MAX])


def _raised(trace: str) -> str:
    """Return the lines behind the frames of a trace: an error's type and text."""
    lines = trace.splitlines()
    for place, line in enumerate(lines):
        if line and not line.startswith(" "):
            found = "\n".join(lines[place:]).strip()
            return found.removeprefix(_OWN)
    return ""
