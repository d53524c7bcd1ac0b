"""LevelDB alone: synced write batches of rows like ours.

``python -m benchmarks.bare_leveldb ROWS SECONDS`` prints JSON: rows written, seconds, and the nanoseconds of each batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import plyvel

from benchmarks import prepared

_PREFIX = b"mdefault:bench:" + bytes(4)
_HEAD = bytes(9)
_BUFFER_BYTES = 16 << 20


def main(rows: int, seconds: float) -> None:
    """Write for so many seconds."""
    payloads = [_HEAD + payload for payload in prepared.payloads(4096)]
    taken: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        database = plyvel.DB(folder, create_if_missing=True, write_buffer_size=_BUFFER_BYTES)
        began_ns = time.perf_counter_ns()
        number, now_ns = 0, began_ns
        while now_ns - began_ns < seconds * 1e9:
            batch = database.write_batch(sync=True)
            put = batch.put
            for row in range(number, number + rows):
                put(_PREFIX + row.to_bytes(10, "big"), payloads[row & 4095])
            batch.write()
            number += rows
            before_ns, now_ns = now_ns, time.perf_counter_ns()
            taken.append(now_ns - before_ns)
        database.close()
    elapsed_s = (now_ns - began_ns) / 1e9
    print(json.dumps({"rows": number, "seconds": elapsed_s, "latencies_ns": taken}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
