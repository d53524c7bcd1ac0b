"""The progress of a benchmark: a line every second on standard error; a terminal overwrites it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Final

from broker.cli.bench.measure import Measure
from broker.cli.output import cell, write_line

EVERY_S: Final = 1.0


@asynccontextmanager
async def shown(measure: Measure) -> AsyncIterator[None]:
    """Show a measure's figures while the block runs."""
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and only this command needs it.
    from rich.live import Live  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    async def report() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            line = measure.look(loop.time()).line
            if sys.stderr.isatty():
                live.update(cell(line), refresh=True)
            else:
                write_line(line, err=True)

    with live if sys.stderr.isatty() else nullcontext():
        reporting = asyncio.ensure_future(report())
        try:
            yield
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting
