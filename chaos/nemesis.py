"""The nemesis: one kind of fault, which begins, is healed, and gives evidence.

A nemesis is a small module in ``chaos/nemeses``. It chooses its victims by the random generator that it gets.
``heal`` returns evidence for the history that the fault **happened**. For example, a kill did not happen if
the process had ended before.

::

    begin   detail   the fault and its victims                       history: invoke fault
    heal    evidence {"happened": true | false, …}                    history: ok fault

Some faults are moments, not states: a kill, a pause, an expired session. ``Repeated`` repeats them until they
are healed. The run leaves a nemesis out if the target lacks an ability in its ``needs``.
"""

from __future__ import annotations

import abc
import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from broker.client import BrokerError
from broker.local.servers import ServerFailed
from chaos.clocks import ClocksMissing
from chaos.links import Link
from chaos.sessions import NotEnded
from chaos.target import Ability, Target, Unable
from chaos.toxiproxy import Toxic, ToxiproxyFailed

FAILURES: Final = (
    BrokerError,
    ServerFailed,
    NotEnded,
    Unable,
    ClocksMissing,
    ToxiproxyFailed,
    OSError,
    TimeoutError,
)
"""Exceptions that a fault may cause. The run records them and goes on."""

ACTION_S_MAX: Final = 120.0
TOLD_MAX: Final = 50


class Nemesis(Protocol):
    """One kind of fault. An instance is begun and healed once."""

    @property
    def name(self) -> str:
        """Return its name on the command line and in histories."""

    @property
    def needs(self) -> frozenset[Ability]:
        """Return the abilities that the target must have."""

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Begin the fault; return its details. Raises FAILURES."""

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """End the fault; return evidence: ``happened`` is True if the fault really happened. Raises FAILURES."""


Make = Callable[[], Nemesis]


class Repeated(abc.ABC):
    """A fault that is a moment. It is repeated, with rests between, until it is healed."""

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
        """Do the fault once; return its details, or None if it was not possible. Raises FAILURES."""

    async def undo(self, target: Target) -> None:  # noqa: B027 - Most faults leave nothing to undo.
        """Undo the lasting effects. Raises FAILURES."""

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Begin to repeat the fault."""
        self._task = asyncio.create_task(self._repeat(target, chance))
        return {}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Wait for the last repetition, undo the effects, and return the details of all."""
        self._stop.set()
        if self._task is not None:
            async with asyncio.timeout(ACTION_S_MAX):
                await self._task
        await self.undo(target)
        evidence: dict[str, Any] = {"happened": bool(self.done), "times": len(self.done)}
        evidence["done"] = self.done[:TOLD_MAX]
        return evidence | ({"errors": self.errors[:TOLD_MAX]} if self.errors else {})

    async def rest(self, seconds: float) -> None:
        """Wait for some seconds, or until the fault is to be healed."""
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


class OnLinks:
    """Toxics on some links, which last until they are healed. A subclass begins them by ``spoil``."""

    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.LINKS})

    def __init__(self, name: str) -> None:
        self.name = name
        self._links: Sequence[Link] = ()
        self._toxics: Sequence[Toxic] = ()

    async def spoil(self, target: Target, links: Sequence[Link], toxics: Sequence[Toxic]) -> None:
        """Put toxics on links. Raises FAILURES."""
        self._links, self._toxics = links, toxics
        await target.links.spoil(links, toxics)

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Remove the toxics; return the links that still had one."""
        spoilt = await target.links.spoilt()
        hit = [link.proxy for link in self._links if link.proxy in spoilt]
        await target.links.mend(self._links, self._toxics)
        return {"happened": bool(hit), "links": hit}
