"""Payloads with the time of their publish, so that the receiver can compute their latency."""

from __future__ import annotations

import struct
import time
from typing import Final

_STAMP: Final = struct.Struct(">8sq")
_MARK: Final = b"brkbench"
BYTES_MIN: Final = _STAMP.size


def now_us() -> int:
    """Return us since 1970 by the machine's clock; publisher and receiver share it, or have clocks that agree."""
    return time.time_ns() // 1000


def stamped(size: int, us: int) -> bytes:
    """Return a payload of ``size`` bytes, at least BYTES_MIN, that contains the time ``us``."""
    return _STAMP.pack(_MARK, us).ljust(size, b".")


def moment_of(payload: bytes) -> int | None:
    """Return the time in a payload; None if it has none."""
    if len(payload) < BYTES_MIN:
        return None
    mark, us = _STAMP.unpack_from(payload)
    return int(us) if mark == _MARK else None
