"""The outcomes of transactions: of each transaction, all messages are visible at the end, or none.

Transactions span topics. The checkers of all topics report to this module, which judges after them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chaos.checkers.tables import LAST, Tables, ValueTable
from chaos.checkers.violations import Findings, spot
from chaos.history import Operation

OPS: Final = ("begin", "commit", "abort", "invalidate")


class Fate(NamedTuple):
    """The outcome of one transaction: the lines of its begin and decision, and its messages at the end."""

    begun: int = -1
    committed: int = -1
    undone: int = -1
    """The line at which it was rolled back or made invalid."""
    is_invalid: bool = False
    """It is invalid: its rows stay as they are, and snapshots name it."""
    is_in_doubt: bool = False
    """A commit was requested, and was neither acknowledged nor refused."""
    owed: int = 0
    seen: int = 0

    @property
    def is_undone(self) -> bool:
        """True if it certainly never committed."""
        return self.undone >= 0 and self.committed < 0 and not self.is_in_doubt


class Fates:
    """The transactions of a history, by write pointer."""

    names = ("pointer_reused",)

    def __init__(self, tables: Tables, found: Findings) -> None:
        """Begin without transactions."""
        self._fates = ValueTable[Fate](tables)
        self._found = found

    def of(self, pointer: int) -> Fate:
        """Return the known outcome of a transaction."""
        return self._fates.get(_key(pointer)) or Fate()

    def began(self, call: Operation) -> None:
        """Note that a client requests a commit."""
        if call.op == "commit":
            pointer = call.asked["pointer"]
            self._fates.put(_key(pointer), self.of(pointer)._replace(is_in_doubt=True))

    def ended(self, call: Operation) -> None:
        """Note a decision; compare the snapshot of a new transaction with earlier commits."""
        if call.op == "begin" and call.is_ok:
            self._compare(call)
            self._begin(call)
        if call.op not in OPS[1:]:
            return
        assert call.ended is not None
        pointer = call.asked["pointer"]
        fate = self.of(pointer)
        if call.op == "commit" and call.is_ok:
            fate = fate._replace(committed=call.ended, is_in_doubt=False)
        elif call.op == "commit" and call.outcome == "fail":
            fate = fate._replace(is_in_doubt=False)
        elif call.op != "commit" and call.is_ok:
            is_invalid = fate.is_invalid or call.op == "invalidate"
            fate = fate._replace(undone=call.ended, is_invalid=is_invalid)
        self._fates.put(_key(pointer), fate)

    def _compare(self, call: Operation) -> None:
        """Find transactions that the snapshot names, but whose commit was acknowledged before it began."""
        snapshot = call.told.get("snapshot") or {}
        for name in ("in_progress", "invalids"):
            for pointer in snapshot.get(name) or ():
                committed = self.of(pointer).committed
                if 0 <= committed < call.invoked:
                    detail = spot(str(pointer), committed_at=committed, told=name)
                    self._found.add("lost_visible", detail, call.ended)

    def _begin(self, call: Operation) -> None:
        """Note the write pointer of a new transaction; find one that was given before."""
        assert call.ended is not None
        pointer = call.told["pointer"]
        fate = self.of(pointer)
        if fate.begun >= 0:
            detail = spot(str(pointer), begun_at=fate.begun, again=call.process)
            self._found.add("pointer_reused", detail, call.ended)
        self._fates.put(_key(pointer), fate._replace(begun=call.ended))

    def count(self, pointer: int, *, is_seen: bool) -> None:
        """Count a message of a transaction that should be visible at the end, and whether it is."""
        fate = self.of(pointer)
        fate = fate._replace(owed=fate.owed + 1, seen=fate.seen + is_seen)
        self._fates.put(_key(pointer), fate)

    def over(self) -> None:
        """Find committed transactions with invisible messages."""
        for pointer, fate in self._fates.between("", LAST):
            if fate.committed >= 0 and fate.seen < fate.owed:
                detail = spot(str(int(pointer)), visible=fate.seen, of=fate.owed)
                self._found.add("half_transaction", detail, fate.committed)


def _key(pointer: int) -> str:
    return f"{pointer:020d}"
