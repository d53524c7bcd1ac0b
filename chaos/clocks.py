"""Wrong wall clocks of single processes, by libfaketime.

libfaketime changes only the wall clock. The monotonic clock and the boot clock stay true, as after an operator
or a time server sets a machine's clock. It reads the offset from a file each time the process reads the clock::

    LD_PRELOAD=libfaketime.so.1  FAKETIME_TIMESTAMP_FILE=DIR/broker-1   "+3600"

Debian's libfaketime 0.9.10 breaks Python 3.11 and newer (``time.sleep`` fails with EINVAL). So this module uses
the library in the Python package ``libfaketime``.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from broker.errors import install_command

SHARED = Path("/dev/shm")  # noqa: S108 - The place of libfaketime's files.
LIBRARY = Path("vendor") / "libfaketime" / "src" / "libfaketime.so.1"


class ClocksMissing(Exception):
    """This machine can't set clocks wrong; the message is one line with the remedy."""


def library() -> Path:
    """Return the path of libfaketime. Raises ClocksMissing."""
    spec = find_spec("libfaketime")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / LIBRARY
    if found is None or not found.is_file():
        raise ClocksMissing(f"libfaketime is not installed: {install_command('chaos')}")
    return found


def sweep(folder: Path = SHARED) -> None:
    """Remove the shared memory of processes that were killed. Only a clean exit removes it."""
    for file in folder.glob("*faketime_s*_*"):
        number = file.name.rpartition("_")[2]
        if number.isdecimal() and not Path("/proc", number).exists():
            with suppress(OSError):  # Another user's, or another run removes it too.
                file.unlink()


class ClockOffsets:
    """The offsets of processes' wall clocks."""

    def __init__(self, folder: Path) -> None:
        """Begin with the folder for the offsets; sweep after earlier runs. Raises ClocksMissing."""
        self._library = library()
        self._offsets_s: dict[str, float] = {}
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        sweep()

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables for the process ``name``. Its clock is right until ``set``."""
        if name not in self._offsets_s:
            self.set(name, 0)
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / name),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Without this, each wait of a thread reads the file again: twenty times the system calls, and
            # most of the processor time.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, name: str, offset_s: float) -> None:
        """Set a clock wrong by this many seconds, from its next reading on."""
        # A process that reads a half-written file would see the true time for a moment.
        written = self._folder / f"{name}.new"
        written.write_text(f"{offset_s:+g}\n")
        written.replace(self._folder / name)
        self._offsets_s[name] = offset_s

    def offset_s(self, name: str) -> float:
        """Return the offset of a clock."""
        return self._offsets_s[name]
