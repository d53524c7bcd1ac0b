"""What one transaction has published, by the broker's answers, and how to undo it.

The broker can roll back only what it is told: each transactional publish answers with the range of its rows. The
last word of this object decides how the transaction may end:

    rollback() -> True     everything is undone: the transaction may be aborted
    rollback() -> False    a publish or a rollback has an unknown outcome: the transaction must be
                           *invalidated*. Aborted, its write pointer would become visible, and with it
                           a message of which the publisher never heard.
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
        self._under_way: set[asyncio.Future[None]] = set()

    @property
    def began(self) -> bool:
        """Return whether anything was published, or may have been."""
        return bool(self._published or self._unknown or self._under_way)

    async def keep(self, topic: TopicName, publishing: Coroutine[Any, Any, Published]) -> Published:
        """Await a publish and keep its answer, or that it has none."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(settled)
        try:
            published = await publishing
        except BrokerError as error:
            self._unknown = self._unknown or error.outcome == "unknown"
            raise
        except TypeError:
            raise  # These are no messages, and nothing was sent.
        except BaseException:  # Cancelled, too.
            self._unknown = True
            raise
        else:
            self._published.append((topic, published))
            return published
        finally:
            self._under_way.discard(settled)
            settled.set_result(None)

    async def rollback(self) -> bool:
        """Undo every publish of the transaction, the last one first.

        Publishes that are under way are waited for: what lands after a rollback would stay. All are
        tried, also after an error.

        Returns:
            Whether all is undone for certain; if not, the transaction must be invalidated.
        """
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        for entry in reversed(self._published.copy()):
            try:
                await self._client.rollback(*entry)
            except BrokerError:
                continue  # It stays in the list, which is what the answer goes by.
            self._published.remove(entry)
        return not (self._unknown or self._published or self._under_way)
