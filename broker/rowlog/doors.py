"""Choose the rows of an HBase: through happybase (Thrift-1), or through Thrift-2 gateways for writes that are synced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker.clock import Clock
from broker.errors import BadRequest
from broker.rowlog.row_table import RowTable

if TYPE_CHECKING:
    import happybase


def rows_maker(
    pool: happybase.ConnectionPool | None,
    thrift2: Sequence[str],
    clock: Clock,
    threads: int,
    *,
    synced: bool,
) -> Callable[[], RowTable]:
    """Return a function that makes the rows through ``pool``, or, if ``synced``, through the gateways at ``thrift2``.

    Call the returned function in an event loop. Raises BadRequest.
    """
    if synced:
        if not thrift2:
            raise BadRequest("synced=True needs the address of a Thrift-2 gateway: thrift2=[...].")
        from broker.rowlog.thrift2 import Thrift2Rows  # noqa: PLC0415 - Only one of them is needed.

        return partial(Thrift2Rows, thrift2)
    if pool is None:
        raise BadRequest("RowLog needs a happybase ConnectionPool, or synced=True.")
    from broker.rowlog.thrift1 import Thrift1Rows  # noqa: PLC0415 - It needs happybase.

    return partial(Thrift1Rows, pool, clock, threads=threads)
