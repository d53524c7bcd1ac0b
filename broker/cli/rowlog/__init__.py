"""``broker rowlog``: show rowlogs, put messages into them, process them, and mend them."""

from broker.cli.rowlog import commands, letters, worker
from broker.cli.rowlog.connections import rowlog

__all__ = ["commands", "letters", "rowlog", "worker"]
