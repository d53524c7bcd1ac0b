"""Run commands of ``broker`` in this process, which is faster than a process for each."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import AnyStr

import pytest

from broker.cli import app

Run = Callable[..., tuple[int, str, str]]
"""Runs a command, given as words, with ``stdin`` as bytes; returns its exit code, output and errors."""


def in_this_process(
    capture: pytest.CaptureFixture[AnyStr], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, AnyStr, AnyStr]]:
    """Return a ``Run`` whose output and errors ``capture`` reads, as text or as bytes."""

    def run(*words: str, stdin: bytes = b"") -> tuple[int, AnyStr, AnyStr]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            app.run(list(words))
        assert isinstance(left.value.code, int)
        told = capture.readouterr()
        return left.value.code, told.out, told.err

    return run
