"""Older states of rows, for stale reads.

It keeps the undos of the last changes, for the rows that changed last. It keeps no state from before a rollback:
no stored value could tell a reader that the rollback is missing, so the protocol assumes that no read shows such a
state.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final

from broker.storage.columns import is_rolled_column
from broker.storage.memory.row_space import MemoryRow, Undo
from broker.storage.table import HEAD, Space

STATES_MAX: Final = 8
ROWS_MAX: Final = 256


class Past:
    """Older states of rows: the last ``STATES_MAX`` of each of the last ``ROWS_MAX`` rows."""

    __slots__ = ("_undos",)

    def __init__(self) -> None:
        """Begin without states."""
        self._undos = OrderedDict[tuple[Space, bytes], deque[Undo]]()

    def note(self, space: Space, key: bytes, undo: Undo, columns: Iterable[bytes] = ()) -> None:
        """Keep the undo of a change that put ``columns``."""
        if any(map(is_rolled_column, columns)):
            self._undos.pop((space, key), None)
            return
        undos = self._undos.pop((space, key), None)
        if undos is None:
            undos = deque(maxlen=STATES_MAX)
        undos.appendleft(undo)
        self._undos[space, key] = undos
        if len(self._undos) > ROWS_MAX:
            self._undos.popitem(last=False)

    def knows(self, space: Space, key: bytes) -> bool:
        """True if there is an older state of the row."""
        return (space, key) in self._undos

    def keys(self, space: Space, first: bytes, last: bytes) -> set[bytes]:
        """Return the keys in ``[first, last]`` of rows with an older state."""
        return {key for of, key in self._undos if of is space and first <= key <= last}

    def older(
        self, space: Space, key: bytes, now: MemoryRow, chance: random.Random
    ) -> MemoryRow | None:
        """Return an older state of a row, whose current state is ``now``; None: there is none."""
        undos = self._undos.get((space, key))
        if not undos:
            return None
        steps = chance.randint(1, len(undos))
        return now.before([undos[step] for step in range(steps)])

    def heads(self, space: Space, key: bytes) -> Iterator[bytes | None]:
        """Return the heads of the older states that differ from the state after them, latest first."""
        for undo in self._undos.get((space, key), ()):
            if HEAD in undo:
                head = undo[HEAD]
                yield None if head is None else head.value
