"""What nodes say in their logs while they are simulated, kept for whoever asks what happened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections import deque
from collections.abc import Generator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from typing_extensions import override

from broker import logs
from broker.testing.simulation.hosts import RUNNING

LINES_MAX: Final = 50_000
STEPS_MAX: Final = 6
UNEXPECTED: Final = "unexpected error"
"""What a node says, too, of an error that nobody foresaw."""
CLAIMED: Final = "topic claimed"
JUDGED: Final = frozenset({UNEXPECTED, CLAIMED})
"""What runs are judged by, which is kept however long they are."""


class TraceLine(NamedTuple):
    """One fact: when, by which process, what, and its fields."""

    time_s: float
    process: str
    event: str
    fields: MutableMapping[str, Any]


class _Library(logging.Handler):
    """Takes what libraries, and the client among them, tell by the standard library."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._trace.add(record.getMessage(), library=record.name)


def _told(error: BaseException) -> str:
    """Return an error, and the last steps to it."""
    steps = traceback.extract_tb(error.__traceback__)[-STEPS_MAX:]
    where = " < ".join(f"{Path(step.filename).name}:{step.lineno}" for step in reversed(steps))
    return f"{error!r} at {where}"


class Trace:
    """The lines of one run.

    Attributes:
        lines: what was said, of which the oldest may be gone.
        judged: what runs are judged by, all of it.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.lines: deque[TraceLine] = deque(maxlen=LINES_MAX)
        self.judged: list[TraceLine] = []

    def add(self, event: str, **fields: Any) -> None:
        """Note a fact."""
        try:
            time_s = asyncio.get_running_loop().time()
        except RuntimeError:
            return  # Outside of the run there is no time.
        process = RUNNING.get()
        # An error would keep alive all that it passed through, longer than its world.
        for key, field in fields.items():
            if isinstance(field, BaseException):
                fields[key] = _told(field)
        line = TraceLine(time_s, "" if process is None else process.name, event, fields)
        self.lines.append(line)
        if event in JUDGED:
            self.judged.append(line)

    def unhandled(self, about: Mapping[str, Any]) -> None:
        """Note an error that nobody handled, as the loop tells of it."""
        error = about.get("exception")
        told = "".join(traceback.format_exception(error)) if error is not None else None
        self.add(UNEXPECTED, message=about.get("message"), error=repr(error), traceback=told)

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        self.add(event, **fields)

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Take every line that is logged in this block."""
        library, root = _Library(self), logging.getLogger()
        root.addHandler(library)
        try:
            with logs.taken(self._note):
                yield
        finally:
            root.removeHandler(library)
