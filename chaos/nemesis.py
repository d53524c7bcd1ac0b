"""What a nemesis is: one kind of fault, begun and healed, that says what it did.

A nemesis is a small file in ``chaos/nemeses``. It draws whom it hits from the chance that it is given, and
``heal`` tells, as evidence for the history, whether the fault **happened**: a process that was to be killed
and had ended before was not.

::

    begin   detail   what is broken from now on                      history: invoke fault
    heal    evidence {"happened": true | false, …}                    history: ok fault

Faults that are moments rather than states (a kill, a pause, an expired session) are repeated for as long as
they are on: ``Repeated``. What can't be done to a target (``needs``) is left out by the run, by name.
"""

from __future__ import annotations

import abc
import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol

from broker.client import BrokerError
from broker.local.servers import ServerFailed
from chaos.sessions import NotEnded
from chaos.target import Ability, Target, Unable
from chaos.toxiproxy import ToxiproxyFailed

FAILURES: Final = (
    BrokerError,
    ServerFailed,
    NotEnded,
    Unable,
    ToxiproxyFailed,
    OSError,
    TimeoutError,
)
"""What may come of breaking things: noted, and no reason to stop."""

ACTION_S_MAX: Final = 120.0
TOLD_MAX: Final = 50


class Nemesis(Protocol):
    """One kind of fault. An instance is begun and healed once."""

    @property
    def name(self) -> str:
        """Its name on the command line and in histories."""

    @property
    def needs(self) -> frozenset[Ability]:
        """What a target must be able to have done to it."""

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Break something; return what is broken now. Raises FAILURES."""

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Undo it; return evidence, and by ``happened`` whether there was a fault. Raises FAILURES."""


Make = Callable[[], Nemesis]


class Repeated(abc.ABC):
    """A fault that is a moment: done again and again, with rests between, until it is healed."""

    name: str
    needs: ClassVar[frozenset[Ability]]
    rest_s: ClassVar[tuple[float, float]] = (1.0, 4.0)

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.errors: list[str] = []
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def act(self, target: Target, chance: random.Random) -> object:
        """Do it once; return what was done, None if nothing could be. Raises FAILURES."""

    async def undo(self, target: Target) -> None:  # noqa: B027 - Most leave nothing behind.
        """Leave nothing behind. Raises FAILURES."""

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Begin to do it."""
        self._task = asyncio.create_task(self._repeat(target, chance))
        return {}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Let the last time end, and tell of all."""
        self._stop.set()
        if self._task is not None:
            async with asyncio.timeout(ACTION_S_MAX):
                await self._task
        await self.undo(target)
        evidence: dict[str, Any] = {"happened": bool(self.done), "times": len(self.done)}
        evidence["done"] = self.done[:TOLD_MAX]
        return evidence | ({"errors": self.errors[:TOLD_MAX]} if self.errors else {})

    async def rest(self, seconds: float) -> None:
        """Wait, unless it is time to heal."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _repeat(self, target: Target, chance: random.Random) -> None:
        while not self._stop.is_set():
            try:
                done = await self.act(target, chance)
            except FAILURES as error:
                self.errors.append(repr(error))
            else:
                if done is not None:
                    self.done.append(done)
            await self.rest(chance.uniform(*self.rest_s))


class OnLinks(abc.ABC):
    """A fault of connections: something goes wrong on some links until it is healed."""

    name: str
    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.LINKS})

    @abc.abstractmethod
    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Break some links; return which."""

    @abc.abstractmethod
    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Mend them."""
