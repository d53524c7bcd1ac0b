from typing import Any

from typing_extensions import override

from broker.clock import SystemClock
from broker.model import LOG_KEY_MIN, LogKey, TopicId, log_key
from broker.storage.entry import Shared, entries_of
from broker.storage.keys import LogId, page_key
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from broker.storage.sweep import turn_gone
from broker.storage.table import HEAD, Cells, Space
from tests.kit.bench import HookedTable

LOG = LogId(TopicId("ns", "t"), 1)


async def test_an_entry_on_a_page_that_goes_during_a_read_is_not_shown_without_its_rollback() -> (
    None
):
    table = HookedTable(MemoryTable())
    logs = Logs(table, SystemClock(), bounds=PageBounds(cells_max=1))
    hold = await logs.claim(LOG, "node")
    for ms in (1, 2):
        added = entries_of(hold.epoch, [log_key(ms, 0)], [b"m"], Shared(pointer=7))
        await hold.append(added, messages=1, payload_bytes=1)
        await hold.settled()
    await hold.rollback(7, log_key(1, 0), log_key(2, 0))

    async def in_pieces(real: Any, *arguments: Any, **named: Any) -> Cells:
        found = await real(*arguments, **named)
        await hold.raise_floor(log_key(1, 1))
        await turn_gone(logs.resolver, LOG, LOG_KEY_MIN)
        return Cells(found.cells[:1], more=True)

    table.on("cells", in_pieces)
    reader = logs.reader(LOG, LOG_KEY_MIN)
    seen = []
    while not reader.ended:
        seen += await reader.next(1 << 20)
    assert [entry.first for entry in seen] == [log_key(2, 0)]
    assert all(entry.is_rolled_back(entry.first) for entry in seen)


class Stale(MemoryTable):
    """Its next reads of heads or columns may be given by a test, as of an earlier time."""

    def __init__(self) -> None:
        super().__init__(is_alone=False)
        self.old_heads: list[dict[bytes, Any]] = []
        self.old_columns: list[list[bytes] | None] = []

    @override
    async def get(self, space: Any, key: bytes, columns: Any) -> Any:
        if columns == (HEAD,) and key == page_key(LOG, LOG_KEY_MIN) and self.old_heads:
            return self.old_heads.pop(0)
        return await super().get(space, key, columns)

    @override
    async def columns(self, *arguments: Any) -> list[bytes]:
        old = self.old_columns.pop(0) if self.old_columns else None
        return await super().columns(*arguments) if old is None else old


async def published(table: Stale, cells_max: int) -> tuple[Logs, list[bytes]]:
    """Publish three messages, and keep the page's head and columns as they are after the first one."""
    logs = Logs(table, SystemClock(), bounds=PageBounds(cells_max=cells_max))
    hold = await logs.claim(LOG, "node")
    page = page_key(LOG, LOG_KEY_MIN)
    ids = [log_key(ms, 0) for ms in (1, 2, 3)]
    for key in ids:
        await hold.append(entries_of(hold.epoch, [key], [b"m"]), messages=1, payload_bytes=1)
        await hold.settled()
        if key == ids[0]:
            head = await table.get(Space.MESSAGES, page, (HEAD,))
            columns = await table.columns(Space.MESSAGES, page, b"\0", b"\xff")
            old = [column for column in columns if column != HEAD]
    table.old_heads = [head, head]
    return logs, old


async def shown_backwards(logs: Logs) -> list[LogKey]:
    reader = logs.reader(LOG, LOG_KEY_MIN)
    seen = []
    while not reader.ended:
        seen += await reader.before(1, 1)
    return [entry.first for entry in seen]


async def test_backwards_a_page_is_read_again_until_it_is_as_new_as_what_was_shown() -> None:
    table = Stale()
    logs, old = await published(table, cells_max=10)
    # The head is stale. So are the columns, but not at first; the page seems to have changed meanwhile.
    table.old_columns = [None, old]
    real, calls = table.cells, 0

    async def once_stale(*arguments: Any, **named: Any) -> Cells:
        nonlocal calls
        calls += 1
        return Cells([], more=False) if calls == 2 else await real(*arguments, **named)

    table.cells = once_stale  # type: ignore[method-assign]
    assert await shown_backwards(logs) == [log_key(ms, 0) for ms in (3, 2, 1)]


async def test_backwards_a_page_before_another_one_is_read_as_sealed() -> None:
    table = Stale()
    logs, old = await published(table, cells_max=2)
    table.old_columns = [None, old]
    assert await shown_backwards(logs) == [log_key(ms, 0) for ms in (3, 2, 1)]
