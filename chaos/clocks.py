"""Clocks of single processes that are wrong: libfaketime between a process and its wall clock.

Only the wall clock is faked; the monotonic clock and the boot clock stay true, as when an operator or a
time server sets a machine's clock. The offset is read from a file at each reading of the clock::

    LD_PRELOAD=libfaketime.so.1  FAKETIME_TIMESTAMP_FILE=DIR/broker-1   "+3600"

Debian's libfaketime 0.9.10 breaks Python 3.11 and newer (``time.sleep`` fails with EINVAL), so the one that
the package ``libfaketime`` brings is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from broker.errors import install_command

LIBRARY = Path("vendor") / "libfaketime" / "src" / "libfaketime.so.1"


class ClocksMissing(Exception):
    """Clocks can't be faked here; the message is one line and says what to do."""


def library() -> Path:
    """Return where libfaketime is. Raises ClocksMissing."""
    spec = find_spec("libfaketime")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / LIBRARY
    if found is None or not found.is_file():
        raise ClocksMissing(f"libfaketime is not installed: {install_command('chaos')}")
    return found


class ClockOffsets:
    """How far the wall clocks of processes are off."""

    def __init__(self, folder: Path) -> None:
        """Keep offsets in a folder. Raises ClocksMissing."""
        self._library = library()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def environment(self, name: str) -> dict[str, str]:
        """Return what the process ``name`` must be started under."""
        self.set(name, 0)
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / name),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Else every wait of a thread for another takes its own reading of the file, and most of the
            # processor: twenty times the system calls.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, name: str, offset_s: float) -> None:
        """Let a clock be off by so many seconds from its next reading on."""
        # A reader of a half-written file would see the true time for a moment.
        written = self._folder / f"{name}.new"
        written.write_text(f"{offset_s:+g}\n")
        written.replace(self._folder / name)

    def offset_s(self, name: str) -> float:
        """Return how far a clock is off."""
        return float((self._folder / name).read_text())
