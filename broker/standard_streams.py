"""Standard input, output and error of a process that may have been started without them."""

from __future__ import annotations

import io
import os
import sys

from typing_extensions import Buffer, override


def open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed. Call this before any other file is opened.

    The next file or socket would get the stream's number. What a library writes to "standard error" would then
    go into a store's file, and Python would have no stream at all.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.open(os.devnull, os.O_RDWR)
    # A process with these streams lasts until its end, so they are never closed.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


class OutputFailed(OSError):
    """The output of a command can't be written. The broker did what the command asked."""


class _StandardOutput(io.FileIO):
    """Standard output. Its errors differ from those of other files: a full disk there is not the broker's."""

    @override
    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(
                error.errno,
                f"the output of this command can't be written: {error.strerror}. Its standard output goes to "
                "a file or device that takes no more; this is not about the broker's disk",
            ) from error


class _StandardError(io.FileIO):
    """Standard error. No stream is left for the error of a write to it, and the exit code must stay the work's."""

    @override
    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError:  # Its reader is gone, or the disk is full.
            return memoryview(data).nbytes


def guard_output() -> None:
    """Make standard output raise OutputFailed, and let a message that standard error does not take be dropped.

    A character that a stream can't encode becomes an escape.
    """
    sys.stdout = _text(_StandardOutput(1, "wb", closefd=False), sys.stdout.encoding)
    sys.stderr = _text(_StandardError(2, "wb", closefd=False), sys.stderr.encoding)
    sys.stderr.reconfigure(line_buffering=True)


def _text(raw: io.FileIO, encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty(),
    )


def drop_output() -> None:
    """Drop what is left of the output, because its reader has closed the pipe, as ``head`` does, or it is full.

    Standard output becomes the null device, or Python would fail again when it flushes at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
