"""``python -m tests.kit.fuzzing.grow``: grow the corpus by the steps that cases take through the code.

The broker runs in this process, over memory and without sockets. A trace function records each step from one line
of the product to the next. A case that takes a new step joins the corpus. This runs a few hundred cases a second
only. So a developer runs it by hand, and the fast runs begin with the saved corpus.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import broker
from broker import logs
from tests.kit.fuzzing.corpus import load, save
from tests.kit.fuzzing.grammar import NAMESPACE, STREAMS, TOPICS, Case, Grammar
from tests.kit.fuzzing.mutation import mutated
from tests.kit.serving import Broker

PRODUCT = str(Path(broker.__file__).parent) + "/"
TEST_KIT = PRODUCT + "testing/"
OWN = 0.4
"""The share of cases that come from the grammar unchanged."""

Step = tuple[str, int, int]


class Steps:
    """The steps through the product that are taken within a ``with`` block."""

    def __init__(self) -> None:
        """Begin without steps."""
        self.taken: set[Step] = set()
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> None:
        """Begin to record."""
        self.taken = set()
        self._last = {}
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        sys.settrace(None)
        self._last = {}

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        return self._step if name.startswith(PRODUCT) and not name.startswith(TEST_KIT) else None

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            line = frame.f_lineno
            self.taken.add((frame.f_code.co_filename, self._last.get(frame, 0), line))
            self._last[frame] = line
        return self._step


class Growing:
    """A broker in this process, and the cases that took new steps through it."""

    def __init__(self, seed: int) -> None:
        """Draw all random numbers from a seed."""
        self.kept: list[Case] = []
        self.steps: set[Step] = set()
        self._rng = random.Random(seed)
        self._grammar = Grammar(self._rng)
        self._broker = Broker()
        self._stepping = Steps()

    async def prepare(self) -> None:
        """Create the topics that cases use."""
        for topic in TOPICS:
            await self._broker.ask("PUT", f"/v1/namespaces/{NAMESPACE}/topics/{topic}")

    async def close(self) -> None:
        """Close the broker."""
        await self._broker.close()

    async def take(self, case: Case) -> bool:
        """Answer a case, and keep it if it took new steps; return whether it did."""
        headers = dict(case.headers)
        with self._stepping:
            await self._broker.ask(case.method, case.target, case.body, headers)
        if self._stepping.taken <= self.steps:
            return False
        self.steps |= self._stepping.taken
        self.kept.append(case)
        return True

    def next_case(self) -> Case:
        """Make a case from the grammar, or from a kept case."""
        case = self._grammar.case()
        if not self.kept or self._rng.random() < OWN:
            return case
        return mutated(self._rng.choice(self.kept), case, self._rng)


async def grow(path: Path, seed: int, seconds: float, bytes_max: int) -> Growing:
    """Grow the corpus of a file for ``seconds``, and write it back without the cases that take no new step."""
    growing = Growing(seed)
    await growing.prepare()
    for case in load(path):
        await growing.take(case)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        case = growing.next_case()
        if case.route not in STREAMS:
            await growing.take(case)
    await growing.close()
    save(path, growing.kept, bytes_max)
    return growing


def main() -> None:
    """Grow a corpus, and print the number of its steps on standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--bytes-max", type=int, default=150_000)
    given = parser.parse_args()
    with logs.taken(lambda _event, _fields: None):  # Drop the log: refusals are expected.
        grown = asyncio.run(grow(given.corpus, given.seed, given.seconds, given.bytes_max))
    sys.stderr.write(f"{len(grown.kept)} cases take {len(grown.steps)} steps\n")


if __name__ == "__main__":
    main()
