"""How a section declares a key: its default, its meaning, its bounds and its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeVar

from broker.config.text_forms import Form

T = TypeVar("T")


def key(
    default: T,
    doc: str,
    *,
    least: float | None = None,
    most: int | None = None,
    form: Form | None = None,
) -> T:
    """Declare a key. Numbers are allowed from ``least`` to ``most``, texts in this form."""
    metadata = {"doc": doc, "least": least, "most": most, "form": form}
    if isinstance(default, Mapping):  # Dataclasses refuse it as mutable, although it is read-only.
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)
