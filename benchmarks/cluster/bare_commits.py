"""Commits to HBase without a broker: one compare-and-set of a head, together with the messages.

``python -m benchmarks.cluster.bare_commits GATEWAY TABLE SENDERS MESSAGES SECONDS`` prints JSON: messages, seconds,
and the nanoseconds of each commit. Each sender is a thread with its own connection and topic. It does one commit after
the other::

    checkAndPut    the head of the topic's page, and MESSAGES messages as entries    FSYNC_WAL

A leader must have this commit on disk before it acknowledges a batch. So the difference to a node's figures is the
broker's cost. This module uses thriftpy2, with the gateway's own interface definition.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport import TBufferedTransportFactory

from benchmarks import prepared
from benchmarks.cluster.threads import measure
from broker.model import TopicId, log_key
from broker.storage.entry import encode, entries_of
from broker.storage.hbase.schema import salt_of
from broker.storage.keys import LogId, page_key

IDL = thriftpy2.load(
    str(Path(__file__).parents[2] / "tests" / "data" / "hbase2.thrift"), module_name="hbase2_thrift"
)
_PROTOCOL: Any = TBinaryProtocolFactory  # The package has no types.
_TRANSPORT: Any = TBufferedTransportFactory
_FSYNC = IDL.TDurability.FSYNC_WAL
_HEAD_BYTES = 130
"""The length of a page's head."""
_PAGE_COMMITS = 500
"""The number of commits to one row, as to a page."""


class Sender:
    """One topic's commits, one after the other."""

    def __init__(self, gateway: tuple[str, int], table: str, name: str, messages: int) -> None:
        """Write ``messages`` messages with each commit."""
        self._log = LogId(TopicId(prepared.NAMESPACE, name), 1)
        self._client: Any = make_client(
            IDL.THBaseService,
            *gateway,
            proto_factory=_PROTOCOL(),
            trans_factory=_TRANSPORT(),
            timeout=60_000,
        )
        self._table = table.encode()
        self._messages = messages
        payloads = prepared.payloads(1024)
        self._payloads = [payloads[number % len(payloads)] for number in range(messages)]
        self._committed: bytes | None = None
        self._ms = time.time_ns() // 1_000_000
        """The time in ids. Ids rise over all runs, so that no id is written twice."""
        self._commits = 0
        self._row = b""

    def commit(self) -> None:
        """Write entries and the head in one commit."""
        self._ms += 1
        if self._commits % _PAGE_COMMITS == 0:
            key = page_key(self._log, log_key(self._ms, 0))
            self._row, self._committed = salt_of(key) + key, None
        self._commits += 1
        ids = [log_key(self._ms, number) for number in range(self._messages)]
        cells = [
            _cell(b"e", entry.column, encode(entry)) for entry in entries_of(1, ids, self._payloads)
        ]
        head = self._commits.to_bytes(_HEAD_BYTES, "big")
        put = IDL.TPut(
            row=self._row, durability=_FSYNC, columnValues=[_cell(b"h", b"h", head), *cells]
        )
        done = self._client.checkAndPut(self._table, self._row, b"h", b"h", self._committed, put)
        if not done:
            raise RuntimeError("the head of a sender has another writer")
        self._committed = head


def _cell(family: bytes, column: bytes, value: bytes) -> Any:
    return IDL.TColumnValue(family=family, qualifier=column, value=value)


def main(gateway: str, table: str, senders: int, messages: int, seconds: float) -> None:
    """Commit for ``seconds``; exit with 1 if a sender failed."""
    host, _, port = gateway.rpartition(":")
    run = time.time_ns()
    made = [
        Sender((host, int(port)), table, f"bare-{run}-{number}", messages)
        for number in range(senders)
    ]
    measure([sender.commit for sender in made], messages, seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
