"""Run Lily's repository on rows in memory, or on a real HBase.

python -m examples.rowlog
python -m examples.rowlog --hbase localhost:9090 --zookeeper localhost:2181
"""

import argparse
import asyncio
import sqlite3
from typing import Any

from broker.rowlog.memory import MemoryRows
from examples.rowlog.repository import Repository


async def run(given: dict[str, Any]) -> None:
    """Save some records, change one, and print its links and the search results."""
    index = sqlite3.connect(":memory:")
    async with Repository(index, given) as repository:
        for table in (b"records", b"links"):
            await repository.rows.make_table(table, b"d", [])
        await repository.save("hbase", "HBase", "A table of very many rows")
        await repository.save("rowlog", "RowLog", "A queue tied to rows of a table", ["hbase"])
        await repository.save("lily", "Lily", "A repository of records", ["hbase", "rowlog"])
        print("linked from, at once:", await repository.linked_from("hbase"))
        await repository.save("rowlog", "RowLog", "A queue and a write-ahead log")
        print("after a change:", await repository.linked_from("hbase"))
        for words, row in (("table", "hbase"), ("write ahead", "rowlog"), ("repository", "lily")):
            await repository.until_found(words, row)
        print("search for 'queue':", repository.search("queue"))
        print("search for 'rows':", repository.search("rows"))
    index.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hbase", metavar="HOST:PORT", help="a Thrift-1 gateway")
    parser.add_argument("--zookeeper", metavar="HOST:PORT", action="append", default=[])
    words = parser.parse_args()
    if words.hbase is None:
        stored: dict[bytes, Any] = {b"records": {}, b"links": {}}
        asyncio.run(run({"pool": None, "rows": MemoryRows(stored)}))
        return
    import happybase  # noqa: PLC0415 - Rows in memory don't need it.

    host, _, port = words.hbase.rpartition(":")
    pool = happybase.ConnectionPool(8, host=host, port=int(port), timeout=30_000)
    with pool.connection() as connection:
        there = connection.tables()
        for name, families in ((b"records", ("d", "rowlog")), (b"links", ("d",))):
            if name not in there:
                connection.create_table(name, {each: {"max_versions": 1} for each in families})
    asyncio.run(run({"pool": pool, "zookeeper": words.zookeeper}))


if __name__ == "__main__":
    main()
