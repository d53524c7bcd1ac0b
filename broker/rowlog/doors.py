"""The ways to the rows of an HBase: happybase for Thrift-1, or the Thrift-2 gateway for writes that are synced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.clock import Clock
from broker.errors import BadRequest
from broker.rowlog.row_table import RowTable

if TYPE_CHECKING:
    import happybase


def row_table(
    pool: happybase.ConnectionPool | None,
    thrift2: Sequence[str],
    clock: Clock,
    threads: int,
    *,
    synced: bool,
) -> RowTable:
    """Return the rows through ``pool``, or, if ``synced``, through the gateways at ``thrift2``. Raises BadRequest."""
    if synced:
        from broker.rowlog.thrift2 import Thrift2Rows  # noqa: PLC0415 - Only one door is needed.

        if not thrift2:
            raise BadRequest("synced=True needs the address of a Thrift-2 gateway: thrift2=[...].")
        return Thrift2Rows(thrift2)
    from broker.rowlog.thrift1 import Thrift1Rows  # noqa: PLC0415 - It needs happybase.

    if pool is None:
        raise BadRequest("RowLog needs a happybase ConnectionPool, or synced=True.")
    return Thrift1Rows(pool, clock, threads=threads)
