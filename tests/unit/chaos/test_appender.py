"""The verdict on an appender's store whose payloads are not those of its appends."""

import asyncio
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.model import log_key
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from chaos import checkers
from chaos.appender import LOG, payload_of, rows_until
from chaos.bare import append
from chaos.full_disk import found_in, history_of


@pytest.mark.parametrize(("changed", "violations"), [(False, set()), (True, {"unreadable"})])
def test_a_changed_payload_is_a_violation(
    changed: bool, violations: set[str], tmp_path: Path
) -> None:
    last = log_key(1, 2)

    async def fill() -> None:
        table = await open_table(tmp_path)
        try:
            hold = await Logs(table, SystemClock()).claim(LOG, "appender")
            rows = rows_until(last)
            payloads = [payload_of(row, 10) for row in rows]
            await append(hold, rows, [*payloads[:-1], b"other"] if changed else payloads)
        finally:
            await table.close()

    asyncio.run(fill())
    final, why = found_in(tmp_path)
    verdict = checkers.check(history_of([f"ok {last.hex()}"], final, why).calls())
    assert (verdict.names, "payload" in why) == (violations, changed)
