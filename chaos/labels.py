"""Labels: short names of payloads, from which the payloads follow.

A history has the labels in place of the payloads. So histories stay small, payloads have many sizes, and a
changed byte is found.
"""

from __future__ import annotations

import hashlib

SIZES = (1, 1, 30, 30, 100, 100, 256, 256, 256, 300, 300, 1000, 1000, 5000, 5000, 70_000)
"""The sizes of payloads, without their label."""


def expand(label: str) -> bytes:
    """Return the payload of a label. Its size and bytes follow from the label."""
    seed = hashlib.sha256(label.encode()).digest()
    size = SIZES[seed[0] % len(SIZES)]
    return label.encode() + b"|" + (seed * (size // len(seed) + 1))[:size]


def collapse(payload: bytes) -> str:
    """Return the label of a payload; if a byte differs, a label that was never published."""
    label = payload.partition(b"|")[0].decode(errors="replace")
    return label if expand(label) == payload else f"damaged:{payload[:80].hex()}"
