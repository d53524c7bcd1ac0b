"""The log lines of simulated nodes, kept for the report of a run."""

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
"""The event of an unhandled error, here and in a node's own log."""
CLAIMED: Final = "topic claimed"
JUDGED: Final = frozenset({UNEXPECTED, CLAIMED})
"""The events by which a run is judged. The trace keeps all of them, however long the run is."""


class TraceLine(NamedTuple):
    """One log line: its time, process, event and fields."""

    time_s: float
    process: str
    event: str
    fields: MutableMapping[str, Any]


class _Library(logging.Handler):
    """Takes the warnings that libraries, such as the client, log by the standard library."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._trace.add(record.getMessage(), library=record.name)


def _told(error: BaseException) -> str:
    """Return an error's text, with the last frames of its traceback."""
    steps = traceback.extract_tb(error.__traceback__)[-STEPS_MAX:]
    where = " < ".join(f"{Path(step.filename).name}:{step.lineno}" for step in reversed(steps))
    return f"{error!r} at {where}"


class Trace:
    """The log lines of one run.

    Attributes:
        lines: the last ``LINES_MAX`` lines.
        judged: all lines by which the run is judged.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.lines: deque[TraceLine] = deque(maxlen=LINES_MAX)
        self.judged: list[TraceLine] = []

    def add(self, event: str, **fields: Any) -> None:
        """Add a line."""
        try:
            time_s = asyncio.get_running_loop().time()
        except RuntimeError:
            return  # Without a running loop there is no virtual time.
        process = RUNNING.get()
        # An error object would keep the frames of its traceback alive, longer than the run. So keep its text.
        for key, field in fields.items():
            if isinstance(field, BaseException):
                fields[key] = _told(field)
        line = TraceLine(time_s, "" if process is None else process.name, event, fields)
        self.lines.append(line)
        if event in JUDGED:
            self.judged.append(line)

    def unhandled(self, about: Mapping[str, Any]) -> None:
        """Add a line for an unhandled error, from the loop's exception handler."""
        error = about.get("exception")
        trace_text = "".join(traceback.format_exception(error)) if error is not None else None
        self.add(UNEXPECTED, message=about.get("message"), error=repr(error), traceback=trace_text)

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        self.add(event, **fields)

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Add every line that is logged inside the block."""
        library, root = _Library(self), logging.getLogger()
        root.addHandler(library)
        try:
            with logs.taken(self._note):
                yield
        finally:
            root.removeHandler(library)
