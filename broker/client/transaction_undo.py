"""Remember the publishes of one transaction, and undo them.

The broker can roll back only a given range. Its answer to a transactional publish has that range.
The result of ``rollback`` decides how the transaction may end:

    rollback() -> True     everything is undone: the transaction may be aborted
    rollback() -> False    a publish or a rollback has an unknown outcome: the transaction must be
                           *invalidated*. An abort would make its write pointer visible, and with it
                           any message whose publish got no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from broker.client.values import Published, TopicName
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.client.aio import Client


class Undo:
    """The answers to the publishes of one transaction."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._published: list[tuple[TopicName, Published]] = []
        self._unknown = False
        self._in_flight: set[asyncio.Future[None]] = set()

    @property
    def began(self) -> bool:
        """True if a publish was done, is in flight or has an unknown outcome."""
        return bool(self._published or self._unknown or self._in_flight)

    async def keep(self, topic: TopicName, publishing: Coroutine[Any, Any, Published]) -> Published:
        """Await a publish and remember its answer, or that its outcome is unknown."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight.add(settled)
        try:
            published = await publishing
        except BrokerError as error:
            self._unknown = self._unknown or error.outcome == "unknown"
            raise
        except TypeError:
            raise  # These are not messages; nothing was sent.
        except BaseException:  # Also a cancellation.
            self._unknown = True
            raise
        else:
            self._published.append((topic, published))
            return published
        finally:
            self._in_flight.discard(settled)
            settled.set_result(None)

    async def rollback(self) -> bool:
        """Undo every publish of the transaction, the last one first.

        It first waits for publishes in flight: a publish that reaches the broker after the rollback would stay. It
        tries to undo all of them, also after an error.

        Returns:
            True if all publishes are certainly undone; if False, the transaction must be invalidated.
        """
        while self._in_flight:
            await asyncio.wait(set(self._in_flight))
        for entry in reversed(self._published.copy()):
            try:
                await self._client.rollback(*entry)
            except BrokerError:
                continue  # It stays in the list, so the result is False.
            self._published.remove(entry)
        return not (self._unknown or self._published or self._in_flight)
