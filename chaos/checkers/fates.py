"""What became of transactions, and whether all of each is visible, or nothing.

Transactions span topics, so this is told by the checkers of all topics, and judged when they are done.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chaos.checkers.tables import LAST, Tables, ValueTable
from chaos.checkers.violations import Findings, spot
from chaos.history import Operation

OPS: Final = ("begin", "commit", "abort", "invalidate")


class Fate(NamedTuple):
    """One transaction: lines at which it was decided, and its messages at the end."""

    committed: int = -1
    undone: int = -1
    """Aborted or made invalid."""
    is_invalid: bool = False
    """Its rows stay as they are, and snapshots name it."""
    is_in_doubt: bool = False
    """A commit was asked for, and nobody acknowledged it yet."""
    owed: int = 0
    seen: int = 0

    @property
    def is_undone(self) -> bool:
        """Whether it certainly never committed."""
        return self.undone >= 0 and self.committed < 0 and not self.is_in_doubt


class Fates:
    """The transactions of a history, by write pointer."""

    def __init__(self, tables: Tables, found: Findings) -> None:
        """Begin without any."""
        self._fates: ValueTable[Fate] = tables.table(Fate._make)
        self._found = found

    def of(self, pointer: int) -> Fate:
        """Return what is known of a transaction."""
        return self._fates.get(_key(pointer)) or Fate()

    def began(self, call: Operation) -> None:
        """Note that somebody wants it committed."""
        if call.op == "commit":
            pointer = call.asked["pointer"]
            self._fates.put(_key(pointer), self.of(pointer)._replace(is_in_doubt=True))

    def ended(self, call: Operation) -> None:
        """Note what was decided, and compare it with the snapshots of later transactions."""
        if call.op == "begin" and call.is_ok:
            self._compare(call)
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
        """Find commits that were answered before a snapshot was asked for that has them open or invalid."""
        snapshot = call.told.get("snapshot") or {}
        for name in ("in_progress", "invalids"):
            for pointer in snapshot.get(name) or ():
                committed = self.of(pointer).committed
                if 0 <= committed < call.invoked:
                    detail = spot(str(pointer), committed_at=committed, told=name)
                    self._found.add("lost_visible", detail, call.ended)

    def count(self, pointer: int, *, is_seen: bool) -> None:
        """Note that a message of a transaction should be visible at the end, and whether it is."""
        fate = self.of(pointer)
        fate = fate._replace(owed=fate.owed + 1, seen=fate.seen + is_seen)
        self._fates.put(_key(pointer), fate)

    def over(self) -> None:
        """Find transactions that were committed, and of which not all is visible."""
        for pointer, fate in self._fates.between("", LAST):
            if fate.committed >= 0 and fate.seen < fate.owed:
                detail = spot(str(int(pointer)), visible=fate.seen, of=fate.owed)
                self._found.add("half_transaction", detail, fate.committed)


def _key(pointer: int) -> str:
    return f"{pointer:020d}"
