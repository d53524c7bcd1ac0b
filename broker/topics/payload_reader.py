"""Read the payload log of a committed reference, to its closed end or until it was dropped."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from broker.errors import Unavailable
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, Topic
from broker.storage.entry import Entry
from broker.storage.keys import LogId
from broker.storage.root import RootState
from broker.topics.surroundings import Surroundings

STALE_READS_MAX: Final = 5
STALE_READ_PAUSE_S: Final = 0.02


def shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the shorter of two lifetimes. None means the topic's ttl, which is the longest."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


class PayloadReader:
    """Reads the payload log of a committed reference, to its closed end or until it was dropped."""

    def __init__(
        self,
        around: Surroundings,
        topic: Topic,
        number: int,
        after: LogKey = LOG_KEY_MIN,
        through: LogKey | None = None,
    ) -> None:
        """Begin behind ``after``."""
        self.taken = after
        """The last message that the caller has taken. The reader may return the entry of this message again."""
        self.ended = after >= (LOG_KEY_MAX if through is None else through)
        self._around = around
        self._number = number
        self._log = LogId(topic.id, topic.generation, number)
        self._through = through
        self._reader = around.logs.reader(self._log, after, through)
        self._tries = STALE_READS_MAX

    async def next(self, bytes_max: int, messages_max: int = 4096) -> list[Entry]:
        """Return the next entries. Raises Unavailable if repeated reads show no closed end."""
        found = await self._reader.next(bytes_max, messages_max)
        if self._reader.ended and not self._update_ended():
            await self.read_again()
        return found

    async def backwards(self, cells_max: int, bytes_max: int) -> AsyncGenerator[Entry, None]:
        """Yield all entries, the last one first. Raises Unavailable, as ``next`` does."""
        while not self._reader.ended:
            found = await self._reader.before(cells_max, bytes_max)
            if not self._starts_at_end():
                await self.read_again()
                continue
            for entry in found:
                yield entry

    def _starts_at_end(self) -> bool:
        """Return whether the backward read began at an end behind which no message can come."""
        return self._reader.is_closed or self._reader.reaches_through or self._is_dropped()

    def _update_ended(self) -> bool:
        """Note and return whether the end that the reader has reached is certain."""
        reader = self._reader
        has_all = self._through is not None and reader.after >= self._through
        self.ended = reader.is_closed or has_all or self._is_dropped()
        return self.ended

    def _is_dropped(self) -> bool:
        root = self._reader.root
        return root is not None and root.state is RootState.DROPPED

    async def read_again(self) -> None:
        """Wait, and begin again behind the entries read so far. Raises Unavailable after some repetitions."""
        self._tries -= 1
        if not self._tries:
            raise Unavailable(
                f"The payloads of transaction {self._number} can't be read just now. Try again."
            )
        await self._around.clock.sleep(STALE_READ_PAUSE_S)
        self._reader = self._around.logs.reader(self._log, self._reader.after, self._through)
