from typing import Any

from broker.clock import SystemClock
from broker.model import ROW_ID_MIN, TopicId, row_id
from broker.storage.entry import Shared, entries_of
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from broker.storage.sweep import turn_gone
from broker.storage.table import Cells
from tests.kit.bench import HookedTable

LOG = LogId(TopicId("ns", "t"), 1)


async def test_an_entry_on_a_page_that_goes_during_a_read_is_not_shown_without_its_rollback() -> (
    None
):
    table = HookedTable(MemoryTable())
    logs = Logs(table, SystemClock(), bounds=PageBounds(cells_max=1))
    hold = await logs.claim(LOG, "node")
    for ms in (1, 2):
        added = entries_of(hold.epoch, [row_id(ms, 0)], [b"m"], Shared(pointer=7))
        await hold.append(added, messages=1, payload_bytes=1)
        await hold.settled()
    await hold.rollback(7, row_id(1, 0), row_id(2, 0))

    async def in_pieces(real: Any, *arguments: Any, **named: Any) -> Cells:
        found = await real(*arguments, **named)
        await hold.raise_floor(row_id(1, 1))
        await turn_gone(logs.resolver, LOG, ROW_ID_MIN)
        return Cells(found.cells[:1], more=True)

    table.on("cells", in_pieces)
    reader = logs.reader(LOG, ROW_ID_MIN)
    seen = []
    while not reader.ended:
        seen += await reader.next(1 << 20)
    assert [entry.first for entry in seen] == [row_id(2, 0)]
    assert all(entry.is_rolled_back(entry.first) for entry in seen)
