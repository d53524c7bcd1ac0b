"""Log lines: one for each event of a node, of a topic's leadership, or of the storage; none for single messages.

A line is a short lower-case fact and its fields: ``log.info("topic claimed", topic=..., epoch=...)``. Secrets in it, such as
credentials in a header that an error shows, are hidden.
The reader of the node's standard error must not be able to stop the node: the pipe may be full because it is not
read, it may be closed, or the disk may be full. So a line goes into a bounded queue, and one daemon thread writes::

    any thread --line--> [ bounded queue ] --thread--> file descriptor
                 |                             |
                 full: dropped, counted        fails: dropped, counted
                                               blocks: only this thread waits

As soon as lines can be written again, one line reports how many were dropped.

Only this module imports structlog; other modules call ``logs.get_logger()``. Log records that other packages write
through the standard library's logging go the same way.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger
from typing_extensions import override

from broker.config.sections import LogFormat, LogLevel, LogsConfig
from broker.escapes import escaped, escaped_lines
from broker.secret import HIDDEN, is_secret_name, without_secrets

Logger = FilteringBoundLogger

NOTICE = "log lines dropped lines=%d"
NOTICE_JSON = '{"event": "log lines dropped", "level": "warning", "lines": %d}'

_BATCH_BYTES_MAX = 65_536


def get_logger(**fields: object) -> Logger:
    """Return a logger that adds ``fields`` to each of its lines."""
    return cast("Logger", structlog.get_logger(**fields))


class LogSink:
    """Writes lines to a file descriptor from a thread of its own. Never blocks or fails a caller."""

    def __init__(self, descriptor: int, lines_max: int, notice: str = NOTICE) -> None:
        """Start the thread. At most ``lines_max`` lines wait; ``notice`` is the line for dropped ones."""
        self.dropped = 0
        """How many lines were dropped since the start."""
        self._descriptor = _duplicate(descriptor)
        self._notice = notice
        self._lines: queue.Queue[str | None] = queue.Queue(lines_max)
        self._dropped_told = 0
        self._counting = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log sink", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, or drop and count it."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._drop(1)

    # structlog calls the method of a line's level.
    debug = info = warning = error = critical = write

    def close(self, deadline_s: float) -> bool:
        """Write the waiting lines, for at most ``deadline_s``. Return whether all were written or dropped."""
        self._closing = True
        # If the queue is full, the thread does not wait for a line, and sees ``_closing`` by itself.
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def release(self) -> None:
        """Close the descriptor, unless the thread hangs in a write to it. Call this only after ``close``."""
        if not self._thread.is_alive() and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _drop(self, lines: int) -> None:
        with self._counting:
            self.dropped += lines

    def _run(self) -> None:
        while not (self._closing and self._lines.empty()):
            lines = self._take()
            try:
                self._write_whole("".join(f"{line}\n" for line in lines))
            except OSError:  # Closed, or no space: only the counter can report it.
                self._drop(len(lines))

    def _take(self) -> list[str]:
        """Wait for a line, and return it with all other waiting lines."""
        taken: list[str] = []
        size = 0
        line = self._lines.get()
        while True:
            if line is not None:
                taken.append(line)
                size += len(line)
            if size >= _BATCH_BYTES_MAX or self._lines.empty():
                return taken
            line = self._lines.get()

    def _write_whole(self, text: str) -> None:
        missing = self.dropped - self._dropped_told
        if missing:
            text = f"{self._notice % missing}\n{text}"
        rest = memoryview(text.encode("utf-8", "backslashreplace"))
        while rest:
            rest = rest[self._write_some(rest) :]
        self._dropped_told += missing

    def _write_some(self, rest: memoryview) -> int:
        try:
            return os.write(self._descriptor, rest)
        except BlockingIOError:
            # Another process that shares standard error may set it to non-blocking.
            select.select([], [self._descriptor], [], 1.0)
            return 0


def _duplicate(descriptor: int) -> int:
    """Return a duplicate: if the original is closed, its number may soon belong to another file."""
    try:
        return os.dup(descriptor)
    except OSError:  # It is closed already, so every line will be dropped and counted.
        return -1


class _Forward(logging.Handler):
    """Hands the standard library's warnings and errors to structlog."""

    def __init__(self, sink: LogSink) -> None:
        super().__init__()
        self._sink = sink

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            log = get_logger(library=record.name)
            tell = log.error if record.levelno >= logging.ERROR else log.warning
            tell(record.getMessage(), exc_info=record.exc_info)
        except Exception as error:  # noqa: BLE001  # A bad record must not stop its caller.
            self._sink.write(escaped(f"a log record could not be written: {error!r}"))


def _no_raise(render: Processor) -> Processor:
    """Wrap a renderer, so that its failure becomes a line instead of an exception."""

    def safely(logger: WrappedLogger, name: str, event: EventDict) -> str:
        try:
            return without_secrets(str(render(logger, name, event)))
        except Exception as error:  # noqa: BLE001  # Logging must not stop its caller.
            return escaped(f"a log line could not be written: {error!r}")

    return safely


class _Escaped:
    """A value of a line for people: its ``repr``, escaped."""

    def __init__(self, value: object) -> None:
        self._text = escaped(repr(value))

    @override
    def __repr__(self) -> str:
        return self._text


def _for_people(colors: bool) -> Processor:
    """Return the renderer of lines for people. Names, topics and errors in them come from others: it escapes them."""
    render = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_write_traceback)

    def safely(logger: WrappedLogger, name: str, event: EventDict) -> str:
        for key, value in event.items():
            if key == "event":
                event[key] = escaped(str(value))
            elif key not in {"exc_info", "stack"} and not _is_safe(value):
                event[key] = _Escaped(value)
        return render(logger, name, event)

    return safely


def _is_safe(value: object) -> bool:
    return isinstance(value, str) and value == escaped(value)


def _write_traceback(out: TextIO, error: ExcInfo) -> None:
    written = io.StringIO()
    structlog.dev.plain_traceback(written, error)
    out.write(escaped_lines(written.getvalue()))


def _without_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Hide the fields that are secrets by their names. The rendered line is looked through, too: see ``without_secrets``."""
    for key in event:
        if is_secret_name(key):
            event[key] = HIDDEN
    return event


def _processors(*, as_json: bool, colors: bool) -> list[Processor]:
    render: list[Processor]
    if as_json:
        render = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=repr),
        ]
    else:
        render = [_for_people(colors)]
    return [
        structlog.contextvars.merge_contextvars,
        _without_secrets,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        *render[:-1],
        _no_raise(render[-1]),
    ]


@contextmanager
def writing(config: LogsConfig, descriptor: int = 2) -> Iterator[LogSink]:
    """Send all lines of this process to a file descriptor, standard error by default.

    Lines for people have colours at a terminal, unless NO_COLOR is set (no-color.org).
    """
    terminal = os.isatty(descriptor)
    as_json = config.log_format is LogFormat.JSON or (
        config.log_format is LogFormat.AUTO and not terminal
    )
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    sink = LogSink(descriptor, config.log_lines_max, NOTICE_JSON if as_json else NOTICE)
    before = structlog.get_config()
    structlog.configure(
        processors=_processors(as_json=as_json, colors=terminal and not os.environ.get("NO_COLOR")),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    try:
        with _standard_library(level, sink):
            yield sink
    finally:
        structlog.configure(**before)
        sink.close(deadline_s=1.0)
        sink.release()


def set_level(level: LogLevel) -> None:
    """Change the least important level that this process writes, within ``writing``."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        **{
            **structlog.get_config(),
            "wrapper_class": structlog.make_filtering_bound_logger(number),
        }
    )
    logging.getLogger().setLevel(max(number, logging.WARNING))


@contextmanager
def taken(take: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Call ``take`` with the event and the fields of each line of this process, and write no line."""

    def note(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        fields = dict(event)
        take(str(fields.pop("event", "")), fields)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[note],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _standard_library(level: int, sink: LogSink) -> Iterator[None]:
    """Forward the standard library's warnings and errors within a ``with`` block."""
    forward, root = _Forward(sink), logging.getLogger()
    level_before = root.level
    root.addHandler(forward)
    root.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        root.removeHandler(forward)
        root.setLevel(level_before)
