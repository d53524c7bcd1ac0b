"""Standard input, output and error of a process that may have been started without them."""

from __future__ import annotations

import os
import sys


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
