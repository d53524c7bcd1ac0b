"""LevelDB alone: synced write batches of rows like this broker's, with the options of its server.

Batches go to the topics in turn, as in the broker. To a single topic LevelDB writes much faster: then its files never
overlap, and it never merges any.

``python -m benchmarks.bare_leveldb ROWS SECONDS TOPICS`` prints JSON: rows written, seconds, and the
nanoseconds of each batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import plyvel

from benchmarks import prepared
from broker.storage.leveldb.database import Options

_HEAD = bytes(9)
_OURS = Options()


def main(rows: int, seconds: float, topics: int) -> None:
    """Write for ``seconds``."""
    prefixes = [b"mdefault:bench-c%d:" % topic + bytes(4) for topic in range(topics)]
    payloads = [_HEAD + payload for payload in prepared.payloads(4096)]
    taken: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        database = plyvel.DB(
            folder,
            create_if_missing=True,
            write_buffer_size=_OURS.write_buffer_bytes,
            max_file_size=_OURS.file_bytes_max,
            compression=_OURS.compression,
        )
        began_ns = time.perf_counter_ns()
        number, now_ns = 0, began_ns
        while now_ns - began_ns < seconds * 1e9:
            batch = database.write_batch(sync=True)
            put, prefix = batch.put, prefixes[number // rows % topics]
            for row in range(number, number + rows):
                put(prefix + row.to_bytes(10, "big"), payloads[row & 4095])
            batch.write()
            number += rows
            before_ns, now_ns = now_ns, time.perf_counter_ns()
            taken.append(now_ns - before_ns)
        database.close()
    elapsed_s = (now_ns - began_ns) / 1e9
    print(json.dumps({"rows": number, "seconds": elapsed_s, "latencies_ns": taken}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
