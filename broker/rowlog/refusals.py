"""The refusals of a change of a row. Nothing was written, and the same call may succeed later."""

from __future__ import annotations

from typing import ClassVar

from broker.errors import UnavailableError


class RowLocked(UnavailableError):
    """The lock on the row belongs to another, can't be reached, or was lost."""

    code: ClassVar[str] = "row_locked"


class MessagesOpen(UnavailableError):
    """Messages of the row are open: they could not be worked off before the change."""

    code: ClassVar[str] = "messages_open"
