"""Commits to HBase with nothing around them: rows like ours, synced, then one compare-and-set.

``python -m benchmarks.cluster.bare_commits GATEWAY TABLE LANES MESSAGES SECONDS`` prints JSON: messages, seconds,
and the nanoseconds of each commit. Each lane is a thread with a connection and a topic of its own, which
does one commit after the other::

    put, or putMultiple    MESSAGES rows of an epoch and a payload     FSYNC_WAL
    checkAndPut            the topic's control cell                    FSYNC_WAL

This is what a leader must have on disk before it acknowledges a batch; what a node makes beside it is what
the broker costs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import prepared
from benchmarks.cluster.threads import measure
from broker.model import TopicId
from broker.storage.hbase_cells import salt_of
from broker.storage.hbase_connections import Address, Connections, Timeouts
from broker.storage.hbase_exchange import IDL
from broker.storage.hbase_requests import FAMILY
from broker.storage.keys import LogId, control_key, log_prefix

_FSYNC = IDL.TDurability.FSYNC_WAL
_TAG = 2
_ID_BYTES = 10
_CONTROL_BYTES = 150
"""As long as a topic's control row with one range is."""


class Lane:
    """One topic's commits, one after the other."""

    def __init__(self, connections: Connections, table: str, name: str, messages: int) -> None:
        """Write ``messages`` rows with each commit."""
        log = LogId(TopicId(prepared.NAMESPACE, name), 1)
        prefix, control = log_prefix(log), control_key(log)
        self._client: Any = connections.take().client
        self._table = table.encode()
        self._prefix = salt_of(prefix) + prefix
        self._control = salt_of(control) + control
        self._messages = messages
        self._payloads = prepared.payloads(1024)
        self._epoch = _cell(b"e", bytes(8), _TAG)
        self._committed: bytes | None = None
        self._row = time.time_ns()
        """Rows rise over all runs, so that none is written twice."""

    def commit(self) -> None:
        """Write rows and the control cell."""
        puts = [self._put(self._row + index) for index in range(self._messages)]
        self._row += self._messages
        if len(puts) == 1:
            self._client.put(self._table, puts[0])
        else:
            self._client.putMultiple(self._table, puts)
        value = self._row.to_bytes(_CONTROL_BYTES, "big")
        put = IDL.TPut(
            row=self._control, durability=_FSYNC, columnValues=[_cell(b"c", value, None)]
        )
        done = self._client.checkAndPut(
            self._table, self._control, FAMILY, b"c", self._committed, put
        )
        if not done:
            raise RuntimeError("the control cell of a lane has another writer")
        self._committed = value

    def _put(self, row: int) -> Any:
        payload = self._payloads[row % len(self._payloads)]
        return IDL.TPut(
            row=self._prefix + row.to_bytes(_ID_BYTES, "big"),
            durability=_FSYNC,
            columnValues=[self._epoch, _cell(b"p", payload, _TAG)],
        )


def _cell(column: bytes, value: bytes, tag: int | None) -> Any:
    return IDL.TColumnValue(family=FAMILY, qualifier=column, value=value, timestamp=tag)


def main(gateway: str, table: str, lanes: int, messages: int, seconds: float) -> None:
    """Commit for so many seconds; exit with 1 if a lane could not."""
    host, _, port = gateway.rpartition(":")
    connections = Connections([Address(host, int(port))], Timeouts(30.0, 5.0, 60.0))
    run = time.time_ns()
    made = [Lane(connections, table, f"bare-{run}-{number}", messages) for number in range(lanes)]
    # What is done once before makes the control cell.
    measure([lane.commit for lane in made], messages, seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
