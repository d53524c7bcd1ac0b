"""Connections that are slow, uneven, narrow, or end badly."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from chaos.links import Link
from chaos.nemesis import OnLinks
from chaos.target import Target
from chaos.toxiproxy import STREAMS, Toxic

Draw = Callable[[random.Random], Sequence[Toxic]]


def latency(chance: random.Random) -> list[Toxic]:
    """Every answer comes 20 to 500 ms late."""
    return [Toxic("latency", "downstream", {"latency": chance.randrange(20, 500), "jitter": 0})]


def jitter(chance: random.Random) -> list[Toxic]:
    """Every packet, both ways, takes another time, up to 300 ms."""
    most = chance.randrange(20, 300)
    return [
        Toxic("latency", stream, {"latency": most // 2, "jitter": most // 2}) for stream in STREAMS
    ]


def bandwidth(chance: random.Random) -> list[Toxic]:
    """Some KB/s pass."""
    rate = chance.randrange(5, 100)
    return [Toxic("bandwidth", stream, {"rate": rate}) for stream in STREAMS]


def reset(chance: random.Random) -> list[Toxic]:
    """Connections are reset within a second of their beginning, half of them."""
    return [Toxic("reset_peer", "downstream", {"timeout": chance.randrange(10, 1000)}, 0.5)]


def slow_close(chance: random.Random) -> list[Toxic]:
    """Who ends a connection is not heard for some seconds."""
    return [
        Toxic("slow_close", stream, {"delay": chance.randrange(500, 5000)}) for stream in STREAMS
    ]


def slices(chance: random.Random) -> list[Toxic]:
    """Everything comes in pieces of some bytes."""
    size = chance.randrange(8, 64)
    sliced = {"average_size": size, "size_variation": size // 2, "delay": 100}
    return [Toxic("slicer", stream, sliced) for stream in STREAMS]


class SlowLinks(OnLinks):
    """One node's links of one kind, or all links of that kind, go wrong in one way."""

    def __init__(self, name: str, draw: Draw) -> None:
        self.name = name
        self._draw = draw
        self._links: list[Link] = []
        self._toxics: Sequence[Toxic] = ()

    @override
    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        pair = chance.choice(target.links.pairs())
        node = chance.choice((None, *target.ends_of(pair)))
        links = target.links
        self._links = links.of(pair) if node is None else links.around(node, pair)
        self._toxics = self._draw(chance)
        await links.spoil(self._links, self._toxics)
        told = [{**toxic.attributes, "stream": toxic.stream} for toxic in self._toxics]
        return {"pair": pair, "node": node or "all", "toxics": told}

    @override
    async def heal(self, target: Target) -> Mapping[str, Any]:
        spoilt = await target.links.spoilt()
        hit = [link.proxy for link in self._links if link.proxy in spoilt]
        await target.links.mend(self._links, self._toxics)
        return {"happened": bool(hit), "links": hit}
