"""Why a rowlog refuses a change of a row. Nothing was written, and the same call may succeed later."""

from __future__ import annotations

from typing import ClassVar

from broker.errors import UnavailableError


class RowLocked(UnavailableError):
    """Another has the lock on the row."""

    code: ClassVar[str] = "row_locked"


class MessagesOpen(UnavailableError):
    """Messages of the row are open, and could not be worked off before its next change."""

    code: ClassVar[str] = "messages_open"
