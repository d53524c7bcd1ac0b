"""Rows, ids, and the range that a read covers, derived from the lines of a history."""

from __future__ import annotations

from typing import Final, NamedTuple

from chaos.history import Operation

LOG_KEY_DIGITS: Final = 20
MOMENT_DIGITS: Final = 16
_NO_PAYLOAD_KEY: Final = "0" * LOG_KEY_DIGITS
ABOVE_ALL: Final = "g"
"""A text above every id, because ids are hexadecimal."""

INLINE: Final = "inline"
REFERENCE: Final = "reference"
STORED: Final = "stored"
VIEWS: Final = {
    "rows": (INLINE, REFERENCE),
    "messages": (INLINE, STORED),
    "all": (INLINE, REFERENCE, STORED),
}
"""The kinds of rows that each view shows."""


class ReadRow(NamedTuple):
    """A row, or a message with a stored payload, as a read showed it."""

    id: str
    payload: str | None
    pointer: int | None = None
    others: str | None = None
    """The key and headers of the row, if they are not those of its publish."""

    @property
    def kind(self) -> str:
        """Return the kind of the row."""
        if len(self.id) > LOG_KEY_DIGITS:
            return STORED
        return REFERENCE if self.payload is None else INLINE


def plain(identifier: str) -> str:
    """Return an id in the shorter of its two forms."""
    is_inline = len(identifier) > LOG_KEY_DIGITS and identifier[LOG_KEY_DIGITS:] == _NO_PAYLOAD_KEY
    return identifier[:LOG_KEY_DIGITS] if is_inline else identifier


def rows_of(call: Operation) -> list[ReadRow]:
    """Return the rows in a read's answer."""
    return [ReadRow(plain(row[0]), *row[1:]) for row in call.told.get("rows", ())]


def below(identifier: str) -> str:
    """Return a text just below an id, and above all lesser ids, also those of stored payloads."""
    number = 0 if identifier in ("", ABOVE_ALL) else int(identifier, 16)
    if number == 0:
        return "" if identifier != ABOVE_ALL else identifier
    return f"{number - 1:0{len(identifier)}x}" + ABOVE_ALL * (len(identifier) == LOG_KEY_DIGITS)


def first_at(time_ms: int) -> str:
    """Return the least id of a millisecond."""
    return f"{max(time_ms, 0):016x}0000"


def moment_ms(identifier: str) -> int:
    """Return the moment in an id: when its message was published, by the leader's clock."""
    return int(identifier[:MOMENT_DIGITS], 16)


class Read(NamedTuple):
    """An answered read. It shows all rows of ``kinds`` in (``after``, ``through``]."""

    call: Operation
    rows: list[ReadRow]
    kinds: tuple[str, ...]
    after: str
    through: str

    @property
    def is_final(self) -> bool:
        """True if it shows the log as it ended."""
        return self.call.process.partition("@")[0] == "final"

    @property
    def has_snapshot(self) -> bool:
        """True if the read has a snapshot, so that it leaves out rows its transaction must not see."""
        return self.call.asked.get("snapshot") is not None


def read_of(call: Operation) -> Read:
    """Return the rows and the covered range of an answered read."""
    rows = rows_of(call)
    covered = _backward(call, rows) if call.asked.get("reverse") else _forward(call, rows)
    return Read(call, rows, VIEWS[call.asked.get("view") or "rows"], *covered)


def asked_after(call: Operation) -> str:
    """Return the id after which the request's range begins."""
    time_ms = call.asked.get("time")
    return plain(call.asked.get("after") or "") if time_ms is None else below(first_at(time_ms))


def asked_through(call: Operation) -> str:
    """Return the last id of the request's range."""
    return plain(call.asked.get("through") or ABOVE_ALL)


def _pointer(call: Operation) -> str | None:
    pointer = call.told.get("pointer")
    return None if pointer is None else plain(pointer)


def _forward(call: Operation, rows: list[ReadRow]) -> tuple[str, str]:
    after, pointer = asked_after(call), _pointer(call)
    seen = plain(call.told.get("seen") or (rows[-1].id if rows else after))
    return after, min(seen, asked_through(call), ABOVE_ALL if pointer is None else pointer)


def _backward(call: Operation, rows: list[ReadRow]) -> tuple[str, str]:
    """Return the covered range of a reverse read.

    It ends at the first shown row, unless the answer gives the log's pointer.
    """
    after, pointer = asked_after(call), _pointer(call)
    seen = plain(call.told.get("seen") or (rows[-1].id if rows else asked_through(call)))
    if pointer is None:
        pointer = rows[0].id if rows else ""
    return max(below(seen), after), min(asked_through(call), pointer)
