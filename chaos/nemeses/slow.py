"""Connections with delays, jitter, low bandwidth, resets, late closes or small pieces.

The first line of a function is the help on its nemesis. Each function returns toxics.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chaos.nemesis import OnLinks
from chaos.target import Target
from chaos.toxiproxy import STREAMS, Toxic

Draw = Callable[[random.Random], Sequence[Toxic]]


def latency(chance: random.Random) -> list[Toxic]:
    """Delay every answer by 20 to 500 ms."""
    return [Toxic("latency", "downstream", {"latency": chance.randrange(20, 500), "jitter": 0})]


def jitter(chance: random.Random) -> list[Toxic]:
    """Delay all data in both directions, by random times up to 300 ms."""
    most = chance.randrange(20, 300)
    return [
        Toxic("latency", stream, {"latency": most // 2, "jitter": most // 2}) for stream in STREAMS
    ]


def bandwidth(chance: random.Random) -> list[Toxic]:
    """Limit both directions to 5 to 100 KB/s."""
    rate = chance.randrange(5, 100)
    return [Toxic("bandwidth", stream, {"rate": rate}) for stream in STREAMS]


def reset(chance: random.Random) -> list[Toxic]:
    """Reset half of the connections within a second of their beginning."""
    return [Toxic("reset_peer", "downstream", {"timeout": chance.randrange(10, 1000)}, 0.5)]


def slow_close(chance: random.Random) -> list[Toxic]:
    """Delay the close of a connection by 0.5 to 5 s."""
    return [
        Toxic("slow_close", stream, {"delay": chance.randrange(500, 5000)}) for stream in STREAMS
    ]


def slices(chance: random.Random) -> list[Toxic]:
    """Split all data into pieces of a few bytes."""
    size = chance.randrange(8, 64)
    sliced = {"average_size": size, "size_variation": size // 2, "delay": 100}
    return [Toxic("slicer", stream, sliced) for stream in STREAMS]


class SlowLinks(OnLinks):
    """One node's links of one kind, or all links of that kind, have the named fault."""

    def __init__(self, name: str, draw: Draw) -> None:
        super().__init__(name)
        self.__doc__ = draw.__doc__
        self._draw = draw

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Put the drawn toxics on the links."""
        pair = chance.choice(target.links.pairs())
        node = chance.choice((None, *target.ends_of(pair)))
        toxics = self._draw(chance)
        await self.spoil(target, target.links.around(node, pair), toxics)
        told = [{**toxic.attributes, "stream": toxic.stream} for toxic in toxics]
        return {"pair": pair, "node": node or "all", "toxics": told}
