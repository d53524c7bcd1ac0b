"""Wrong wall clocks of nodes: set back, set forward, strobing, or each with its own offset.

The clients' clocks stay right. A node compares its clock with the storage's when it claims a topic. If the
difference exceeds ``clock_skew_ms_max``, the node leads no topic until it is restarted. The verifier
restarts it after the clocks are right again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from chaos.nemesis import Repeated
from chaos.target import Ability, Target

HOUR_S = 3600.0
STROBE_S = 4.0
SKEW_S = 1.5
"""Below the nodes' tolerance, so that they go on leading with different clocks."""


class ClockStep:
    """One node's clock has a constant offset."""

    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.CLOCKS})

    def __init__(self, name: str, offset_s: float) -> None:
        self.name = name
        way = "behind" if offset_s < 0 else "ahead"
        self.__doc__ = f"One node's clock is {abs(offset_s):g} s {way}."
        self._offset_s = offset_s
        self._node = ""

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Set one clock wrong."""
        self._node = chance.choice(target.nodes)
        target.clocks.set(self._node, self._offset_s)
        return {"node": self._node, "offset_s": self._offset_s}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Set the clock right."""
        was_s = target.clocks.offset_s(self._node)
        target.clocks.set(self._node, 0)
        return {"happened": was_s == self._offset_s, "offset_s": was_s}


class Skew:
    """Every node's clock has its own offset, within the nodes' tolerance."""

    name = "clock-skew"
    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.CLOCKS})

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Set all clocks wrong."""
        offsets = {node: round(chance.uniform(-SKEW_S, SKEW_S), 3) for node in target.nodes}
        for node, offset_s in offsets.items():
            target.clocks.set(node, offset_s)
        return {"offsets_s": offsets}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Set all clocks right."""
        offsets = {node: target.clocks.offset_s(node) for node in target.nodes}
        for node in target.nodes:
            target.clocks.set(node, 0)
        return {"happened": any(offsets.values()), "offsets_s": offsets}


class Strobe(Repeated):
    """One node's clock jumps back and forth, many times a second."""

    name = "clock-strobe"
    needs = frozenset({Ability.CLOCKS})
    rest_s: ClassVar[tuple[float, float]] = (0.02, 0.3)

    def __init__(self) -> None:
        super().__init__()
        self._node: str | None = None

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        self._node = self._node or chance.choice(target.nodes)
        offset_s = round(chance.uniform(-STROBE_S, STROBE_S), 3)
        target.clocks.set(self._node, offset_s)
        return {"node": self._node, "offset_s": offset_s}

    @override
    async def undo(self, target: Target) -> None:
        if self._node is not None:
            target.clocks.set(self._node, 0)
