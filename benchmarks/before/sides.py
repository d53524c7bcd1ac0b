"""The standalone servers of both checkouts, on LevelDB."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from benchmarks import peers
from benchmarks.figures import Question, compare
from benchmarks.harness import Bench
from broker.testing.server_process import ServerProcess

NOW, BEFORE = "now", "before"
NOT_WORSE = 0.95
"""Now must be at least so good as before."""
NO_CACHE = ("--cache-bytes-max", "0")


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment variables by which Python imports the modules of a checkout, and not this one's."""
    return {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


class ServerBefore(peers.OurServer):
    """``broker serve`` of another checkout."""

    name: ClassVar[str] = "before"

    def __init__(self, checkout: Path, *flags: str) -> None:
        """Serve with the code in ``checkout``."""
        super().__init__(*flags)
        self._environment = {**os.environ, **environment_of(checkout)}


async def both(bench: Bench, before: Path, *flags: str) -> Mapping[str, peers.OurServer]:
    """Return both servers; start each once for the same flags."""
    makers: dict[str, Callable[[], ServerProcess]] = {
        NOW: partial(peers.OurServer, *flags),
        BEFORE: partial(ServerBefore, before, *flags),
    }
    servers: dict[str, peers.OurServer] = {}
    for name, make in makers.items():
        server = await bench.server(" ".join((name, *flags)), make)
        if not isinstance(server, peers.OurServer):
            raise TypeError(f"{name} does not serve: {bench.absent(' '.join((name, *flags)))}")
        servers[name] = server
    return servers


def end_both(bench: Bench, *flags: str) -> None:
    """End the servers of ``both``."""
    for name in (NOW, BEFORE):
        bench.stop(" ".join((name, *flags)))


def related(question: Question, case: str, *, at_most: bool = False) -> None:
    """Compare now with before, and put the ratio into the question. ``at_most``: less is better."""
    now, before = (question.named(named(side, case)) for side in (NOW, BEFORE))
    must = 1 / NOT_WORSE if at_most else NOT_WORSE
    question.ratios.append(compare(now, before, must=must, at_most=at_most))


def named(side: str, case: str) -> str:
    """Return the name of a series."""
    return f"{side}, {case}"
