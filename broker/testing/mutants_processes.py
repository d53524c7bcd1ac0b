"""Mutants of guards below real processes: disks, clocks, ZooKeeper, storage's answers. See mutants.py.

Each takes away one check and changes nothing else, as a careless change might. The verifier (chaos/cases) and the tests
of LevelDB's files find them.
"""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple, Self
from unittest import mock

from broker.clock import WallGuard
from broker.coordination.cluster_tenure import ClusterTenure, TopicLeaders
from broker.coordination.locks import SEQUENCE_DIGITS, TreeLease
from broker.coordination.ports import Contact
from broker.coordination.tenure import TopicPlacement
from broker.model import LOG_KEY_MIN, LogKey, Snapshot, TopicId, log_key_before
from broker.storage import entry, head, last_page, log, page_entries, root
from broker.storage.entry import Entry
from broker.storage.head import ChangeVerdict, Head
from broker.storage.leveldb.database import Database
from broker.storage.leveldb.write_thread import Writer
from broker.storage.memory.row_space import RowSpace
from broker.storage.ownpage import OwnPage
from broker.storage.resolve import Resolver, Tokens
from broker.storage.root import Root
from broker.storage.table import Space
from broker.topics import leader
from broker.topics.cache import CacheBudget, TopicCache
from broker.topics.log_keys import LogKeys, Position

Patch = AbstractContextManager[object]
_PLYVEL: Final = "broker.storage.leveldb.database.plyvel"
"""Only broker/storage/leveldb/database.py imports plyvel."""


@contextmanager
def _all(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


class Swapped(NamedTuple):
    """One check dropped; ``patch`` returns a context manager that drops it."""

    does: str
    patch: Callable[[], Patch]


# A leader's knowledge of its log.


def _compare() -> Patch:
    of_rows = RowSpace.change
    swap, append = Resolver.swap, Resolver.append

    def change(self: RowSpace, key: bytes, _: bytes | None, *rest: Any, **more: Any) -> Any:
        now = self.get(key).head
        return of_rows(self, key, None if now is None else now.value, *rest, **more)

    async def swap_now(
        self: Resolver, space: Space, row: bytes, _: bytes | None, *rest: Any, **more: Any
    ) -> bool:
        now = await self.head(space, row)
        return await swap(self, space, row, None if now is None else now.value, *rest, **more)

    async def append_now(
        self: Resolver, space: Space, row: bytes, old: Head, new: Head, cells: Mapping[bytes, bytes]
    ) -> ChangeVerdict:
        now = await self.head(space, row)
        before = old if now is None else head.decode(now.value)
        return await append(self, space, row, before, new, cells)

    return _all(
        mock.patch.object(RowSpace, "change", change),
        mock.patch.object(Resolver, "swap", swap_now),
        mock.patch.object(Resolver, "append", append_now),
    )


def _lead_by_reading() -> Patch:
    append = Resolver.append

    async def look_first(
        self: Resolver, space: Space, row: bytes, old: Head, new: Head, cells: Mapping[bytes, bytes]
    ) -> ChangeVerdict:
        shown = await self.head(space, row)
        if shown is not None and head.decode(shown.value).epoch == old.epoch:
            now = await self.head(space, row)
            old = old if now is None else head.decode(now.value)
        return await append(self, space, row, old, new, cells)

    return mock.patch.object(Resolver, "append", look_first)


def _resolve_false() -> Patch:
    settled = Resolver._settled  # noqa: SLF001

    async def believe(
        self: Resolver,
        change: Callable[[], Awaitable[bool]],
        look: Callable[[], Awaitable[ChangeVerdict]],
    ) -> ChangeVerdict:
        answers: list[bool] = []

        async def noted() -> bool:
            answers.append(await change())
            return answers[-1]

        async def unless_false() -> ChangeVerdict:
            return ChangeVerdict.NEVER if answers and not answers[-1] else await look()

        return await settled(self, noted, unless_false)

    return mock.patch.object(Resolver, "_settled", believe)


def _cache_complete() -> Patch:

    def whole(budget: CacheBudget, _: LogKey) -> TopicCache:
        return TopicCache(budget, LOG_KEY_MIN)

    return mock.patch.object(leader, "TopicCache", whole)


def _in_progress() -> Patch:

    def visible(self: Snapshot, pointer: int) -> bool:
        return not self.is_invalid(pointer)

    return mock.patch.object(Snapshot, "is_visible", visible)


# Clocks.


def _clock_ids() -> Patch:
    appended = OwnPage._appended  # noqa: SLF001

    def by_the_clock(_: LogKeys, now_ms: int) -> Position:
        return Position(now_ms, 0)

    def unlooked(self: OwnPage, added: Sequence[Entry], *rest: Any) -> Head:
        newest = self._newest
        self._newest = newest._replace(pointer=min(newest.pointer, log_key_before(added[0].first)))
        try:
            return appended(self, added, *rest)
        finally:
            self._newest = newest

    return _all(
        mock.patch.object(LogKeys, "_start", by_the_clock),
        mock.patch.object(OwnPage, "_appended", unlooked),
    )


def _boot_clock() -> Patch:

    def now_ms(self: WallGuard, wall_ms: float, boot_ms: float) -> int:
        self.offset_ms = wall_ms - boot_ms
        return int(wall_ms)

    return mock.patch.object(WallGuard, "now_ms", now_ms)


# ZooKeeper.


def _suspended() -> Patch:
    changed, placed = ClusterTenure._contact_changed, ClusterTenure.place  # noqa: SLF001
    letting_go: set[asyncio.Task[None]] = set()

    def nowhere(self: ClusterTenure, topic: TopicId) -> TopicPlacement:
        if self._coordinator.contact is not Contact.CONNECTED:
            return TopicPlacement(here=False, node=None)
        return placed(self, topic)

    def let_go(self: ClusterTenure, contact: Contact) -> None:
        changed(self, contact)
        if contact is not Contact.CONNECTED and self._leaders is not None:
            led = list(self._leaders.topics_led())
            letting_go.add(asyncio.create_task(_hand_over(self._leaders, led)))

    async def _hand_over(leaders: TopicLeaders, led: list[TopicId]) -> None:
        await leaders.hand_over(led)

    return _all(
        mock.patch.object(ClusterTenure, "place", nowhere),
        mock.patch.object(ClusterTenure, "_contact_changed", let_go),
    )


def _zookeeper_epochs() -> Patch:
    made, next_head = TreeLease.__init__, last_page.next_head
    newest = 0

    def note(self: TreeLease, locks: Any, wish: Any, name: str, session: int) -> None:
        nonlocal newest
        newest = int(name[-SEQUENCE_DIGITS:])
        made(self, locks, wish, name, session)

    def numbered(
        log_: Any, root_: Root | None, tail_: Any, owner: str, tokens: Tokens, epoch: int | None
    ) -> Head:
        new = next_head(log_, root_, tail_, owner, tokens, epoch)
        return new if epoch is not None else new._replace(epoch=newest + 1)

    return _all(
        mock.patch.object(TreeLease, "__init__", note),
        mock.patch.object(log, "next_head", numbered),
    )


# Disks.


def _synced() -> Patch:

    def unsynced(self: Database) -> Any:
        return self._db.write_batch(sync=False)

    return mock.patch.object(Database, "batch", unsynced)


def _leveldb_reopen() -> Patch:

    def go_on(self: Writer, *_: object) -> None:
        self.recent.forget()

    return mock.patch.object(Writer, "_fail", go_on)


class _Unverified:
    """A LevelDB database, or a snapshot of one, that verifies no checksums when it reads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def get(self, key: bytes, **_: object) -> Any:
        return self._inner.get(key)

    def iterator(self, **asked: Any) -> Any:
        asked.pop("verify_checksums", None)
        return self._inner.iterator(**asked)

    def snapshot(self) -> Any:
        return _Unverified(self._inner.snapshot())

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Constant:
    """Replaces zlib: every checksum is the same."""

    @staticmethod
    def crc32(*_: object) -> int:
        return 0


def _checksums() -> Patch:
    opened = pkgutil.resolve_name(f"{_PLYVEL}.DB")

    def unverified(path: str, **options: Any) -> Any:
        return _Unverified(opened(path, **{**options, "paranoid_checks": False}))

    return _all(
        mock.patch(f"{_PLYVEL}.DB", unverified),
        *(
            mock.patch.object(module, "zlib", _Constant)
            for module in (entry, page_entries, head, root)
        ),
        *(
            mock.patch.object(module, "WHOLE", _Constant.crc32())
            for module in (entry, page_entries)
        ),
    )


MUTANTS: Final[Mapping[str, Swapped]] = {
    "compare": Swapped("a change does not compare the head with the expected one", _compare),
    "lead-by-reading": Swapped(
        "a leader reads whether it leads, and then writes without a comparison", _lead_by_reading
    ),
    "resolve-false": Swapped(
        "the resolver takes the answer False as proof that the change was not made", _resolve_false
    ),
    "cache-complete": Swapped(
        "a new leader takes its cache for the whole log, though the cache begins at the claim",
        _cache_complete,
    ),
    "in-progress": Swapped(
        "a poll takes transactions in progress for committed ones", _in_progress
    ),
    "clock-ids": Swapped(
        "ids come from the clock alone, and an append does not check that they rise", _clock_ids
    ),
    "boot-clock": Swapped("a node believes a wall clock that jumps at once", _boot_clock),
    "suspended": Swapped(
        "a node that has lost contact with ZooKeeper hands its topics over", _suspended
    ),
    "zookeeper-epochs": Swapped(
        "a claim takes its epoch from the number of the last lock in ZooKeeper, not from the log",
        _zookeeper_epochs,
    ),
    "synced": Swapped("the broker does not tell LevelDB to sync its writes", _synced),
    "leveldb-reopen": Swapped(
        "after a failed write the broker writes to the same database object again", _leveldb_reopen
    ),
    "checksums": Swapped(
        "no checksum is verified: neither LevelDB's for its blocks nor the broker's for its values",
        _checksums,
    ),
}
