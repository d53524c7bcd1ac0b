"""Who holds which log of a LevelDB store.

One process has the database, so a hold is fenced by being replaced here: a claim puts the new hold in
the old one's place, in the writer thread, between two writes. The writer asks just before each write
whether a hold is still the current one. A payload log's hold stands and falls with its topic's.

After a write error every hold is done. What each had confirmed is kept, because readers go on with the
dead database and must see nothing above it.
"""

from __future__ import annotations

import threading
from typing import NamedTuple
from weakref import WeakValueDictionary

from broker.errors import Fenced
from broker.storage.control import Control
from broker.storage.keys import LogId, control_key, log_prefix

MESSAGES, PAYLOADS, RECORDS, META = b"m", b"p", b"r", b"f"
"""The table byte that leads each key of the database."""


def table_of(log: LogId) -> bytes:
    """Return the table byte of a log's rows, side rows and control row."""
    return MESSAGES if log.number is None else PAYLOADS


def database_control_key(log: LogId) -> bytes:
    """Return the key of a log's control row in the database."""
    return table_of(log) + control_key(log)


def database_prefix(log: LogId) -> bytes:
    """Return the prefix of a log's row keys in the database."""
    return table_of(log) + log_prefix(log)


class SweepCursor(NamedTuple):
    """Keys from which the search for what can be swept goes on, lest it walks over what is gone."""

    rows: bytes = b""
    """Rows below the floor; for as long as the hold, since nothing comes back there."""
    lives: bytes = b""
    """Entries of rows with lives of their own; until all were looked at once."""
    side: bytes = b""
    """Idempotency rows; likewise."""


class HeldLog:
    """A Hold. Its attributes change by single assignments, and but for ``done`` in the writer thread."""

    before_server_ms = None
    claimed_server_ms = None
    """There is no clock but this process's own."""

    __slots__ = (
        "__weakref__",
        "control",
        "cursor",
        "done",
        "key",
        "log",
        "prefix",
        "rows",
        "stored",
        "topic_hold",
    )

    def __init__(
        self, log: LogId, control: Control, stored: Control | None, topic_hold: HeldLog | None
    ) -> None:
        """Make a hold; ``stored`` is what the database has, None if there is no control row."""
        self.log = log
        self.key = database_control_key(log)
        self.prefix = database_prefix(log)
        self.control = control
        self.stored = stored
        self.topic_hold = topic_hold
        self.done = False
        self.rows = 0
        """Appended under this hold less those swept, roughly: what LevelDB has in memory is in no
        estimate of its own."""
        self.cursor = SweepCursor()

    @property
    def epoch(self) -> int:
        """The epoch of this hold."""
        return self.control.epoch

    def confirm(self, control: Control) -> None:
        """Take over what the database has confirmed."""
        self.control = control
        self.stored = control


class Holds:
    """The current hold of each log that has one."""

    def __init__(self) -> None:
        """Start with none."""
        self._messages: dict[bytes, HeldLog] = {}
        # A transaction's payload log is held by whoever stores into it, and by nobody after.
        self._payloads: WeakValueDictionary[bytes, HeldLog] = WeakValueDictionary()
        self._last_confirmed: dict[bytes, Control | None] = {}
        self._lock = threading.Lock()

    def current(self, key: bytes) -> HeldLog | None:
        """Return the hold on the log with this control key in the database."""
        return self._messages.get(key) or self._payloads.get(key)

    def last_confirmed(self, key: bytes) -> tuple[bool, Control | None]:
        """Return whether the log's control row is known without reading, and what it is."""
        hold = self.current(key)
        if hold is not None:
            return True, hold.stored
        return key in self._last_confirmed, self._last_confirmed.get(key)

    def take(self, hold: HeldLog) -> None:
        """Make ``hold`` the current one of its log; the former is done."""
        with self._lock:
            former = self.current(hold.key)
            if former is not None:
                former.done = True
            if hold.topic_hold is None:
                self._messages[hold.key] = hold
            else:
                self._payloads[hold.key] = hold

    def let_go(self, key: bytes) -> None:
        """Leave the log without a hold."""
        hold = self.current(key)
        if hold is not None:
            hold.done = True
            self._messages.pop(key, None)
            self._payloads.pop(key, None)

    def check(self, hold: HeldLog) -> None:
        """Raise Fenced unless ``hold`` is current, and its topic's too."""
        if hold.done or self.current(hold.key) is not hold:
            hold.done = True
            raise Fenced(f"the hold of epoch {hold.epoch} on {hold.log.topic} is over")
        if hold.topic_hold is not None:
            self.check(hold.topic_hold)

    def end_all(self) -> None:
        """Declare all holds done, and keep what they had confirmed for readers."""
        with self._lock:
            for hold in [*self._messages.values(), *self._payloads.values()]:
                hold.done = True
                self._last_confirmed[hold.key] = hold.stored
            self._messages.clear()
            self._payloads.clear()

    def forget_confirmed(self) -> None:
        """Go by the database again, after it was opened anew."""
        self._last_confirmed.clear()
