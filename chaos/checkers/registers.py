"""The checker of registers, which clients change by compare-and-set: each change follows the one before.

Every written value is unique for its key, and each write names the value that it replaces. So the order of
the writes is known, and the checker needs no search for it::

    none ──cas──▶ a ──cas──▶ b ──cas──▶ c        place 0, 1, 2, 3
                   └──cas──▶ d                   two replace a: an update is lost

    a read that begins after c was seen must find c or a later value
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checkers.tables import Tables, ValueTable
from chaos.checkers.violations import Findings, spot
from chaos.history import Operation

NOTHING = "absent"


class _Written(NamedTuple):
    """A value that a client tried to write."""

    place: int
    """The number of changes that lead to it."""
    expected: str
    is_refused: bool = False
    follower: str = ""
    """The value that replaced it, if an answer showed that."""


@dataclass(slots=True)
class _Register:
    farthest: int = 0
    """The place of the latest value in any answer."""
    bounds: dict[int, int] = field(default_factory=dict)
    """For each call in flight: ``farthest`` when it began."""
    is_owed: bool = False
    """True if a change was acknowledged."""
    is_final: bool = False
    """True if a final read showed it."""


class Registers:
    """Judges all registers of a history."""

    names = ("lost_update", "stale_value", "phantom_value", "unreadable")

    def __init__(self, tables: Tables, found: Findings) -> None:
        """Begin with every register absent."""
        self._found = found
        self._written = ValueTable[_Written](tables)
        self._versions = ValueTable[tuple[str]](tables)
        self._registers: dict[str, _Register] = {}

    @property
    def is_known(self) -> bool:
        """True if a final read showed each changed register."""
        return all(one.is_final for one in self._registers.values() if one.is_owed)

    def began(self, call: Operation) -> None:
        """Keep the farthest known place, and the value of a write."""
        if call.op not in ("cas", "get"):
            return
        key = call.asked["key"]
        register = self._registers.setdefault(key, _Register())
        register.bounds[call.invoked] = register.farthest
        if call.op == "cas":
            expected = _name(call.asked.get("expected"))
            before = self._find(key, expected)
            place = 0 if before is None else before.place + 1
            self._put(key, _name(call.asked["value"]), _Written(place, expected))

    def ended(self, call: Operation) -> None:
        """Judge an answer."""
        if call.op not in ("cas", "get"):
            return
        key = call.asked["key"]
        register = self._registers[key]
        bound = register.bounds.pop(call.invoked)
        if call.op == "get" and call.process.partition("@")[0] == "final":
            self._finally(register, call)
        if call.op == "cas" and call.outcome == "fail":
            value = _name(call.asked["value"])
            written = self._find(key, value)
            assert written is not None
            self._put(key, value, written._replace(is_refused=True))
            before = self._find(key, written.expected)
            if before is not None and before.follower == value:
                self._tell("phantom_value", call, value, why="refused, but a client saw it")
        elif call.is_ok and call.op == "cas":
            register.is_owed = True
            self._seen(key, _name(call.asked["value"]), bound + 1, call)
        elif call.is_ok:
            self._seen(key, _name(call.told.get("value")), bound, call)

    def _finally(self, register: _Register, call: Operation) -> None:
        """Note a final read of a register."""
        if call.is_ok:
            register.is_final = True
        else:
            detail = spot(call.asked["key"], process=call.process, why=call.told.get("why"))
            self._found.add("unreadable", detail, call.ended)

    def _seen(self, key: str, value: str, least: int, call: Operation) -> None:
        """Judge a value that was in the register while a call was in flight."""
        written = self._find(key, value)
        if written is None or written.is_refused:
            self._tell("phantom_value", call, value)
            return
        if written.place < least:
            self._tell("stale_value", call, value, place=written.place, least=least)
        register = self._registers[key]
        register.farthest = max(register.farthest, written.place)
        self._version(key, value, call)
        self._follow(key, value, call)

    def _follow(self, key: str, value: str, call: Operation) -> None:
        """Note that a value replaced its expected value, and so on for each value before."""
        while value != NOTHING:
            written = self._find(key, value)
            before = None if written is None else self._find(key, written.expected)
            if written is None or before is None or before.follower == value:
                return
            if before.follower:
                self._tell("lost_update", call, value, other=before.follower, of=written.expected)
                return
            self._put(key, written.expected, before._replace(follower=value))
            value = written.expected

    def _version(self, key: str, value: str, call: Operation) -> None:
        version = call.told.get("version")
        if version is None:
            return
        name = f"{key} {version}"
        known = self._versions.get(name)
        if known is None:
            self._versions.put(name, (value,))
        elif known[0] != value:
            self._tell("lost_update", call, value, other=known[0], version=version)

    def _find(self, key: str, value: str) -> _Written | None:
        found = self._written.get(f"{key} {value}")
        return _Written(0, NOTHING) if found is None and value == NOTHING else found

    def _put(self, key: str, value: str, written: _Written) -> None:
        self._written.put(f"{key} {value}", written)

    def _tell(self, name: str, call: Operation, value: str, **facts: object) -> None:
        detail = spot(f"{call.asked['key']} = {value}", process=call.process, **facts)
        self._found.add(name, detail, call.ended)


def _name(value: object) -> str:
    return NOTHING if value is None else f"value {value}"
