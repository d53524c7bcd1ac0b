"""A disk that is really full: a small tmpfs in a mount namespace of its own.

``unshare -m python -m broker.testing.full_disk DIR`` (as root; ``unshare -rm`` else) mounts it on DIR, lets
an appender fill it, frees some room, lets it go on, kills it, and prints as JSON what was acknowledged and
what is there. It all happens in one process tree, because the tmpfs goes with its namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path

from broker.storage.leveldb_check import check
from broker.storage.leveldb_store import LevelDBStore
from broker.testing.appender import read_ids, rows_until

_SIZE = "40m"
_BALLAST_BYTES = 24 << 20
_AFTER = 60
"""Appends that are waited for after room was made."""
_REFUSED = 5
_FAILED_MAX = 500
"""A store that does not recover is given up after so many failed appends."""


def command(directory: Path, *arguments: str) -> list[str]:
    """Return the command that plays it through on an empty directory, with the appender's options."""
    return [
        *("unshare", "-rm", sys.executable, "-m", "broker.testing.full_disk", str(directory)),
        *arguments,
    ]


def _fill_and_free(directory: Path, options: list[str]) -> tuple[list[str], list[str]]:
    """Return the appender's lines until room was made, and those after."""
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(_BALLAST_BYTES))
    appender = [sys.executable, "-m", "broker.testing.appender", str(directory / "data")]
    options = ["--payload-bytes", "3000", *options]
    before: list[str] = []
    after: list[str] = []
    with subprocess.Popen([*appender, *options], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            failed = 0
            for line in child.stdout:
                (before if failed < _REFUSED else after).append(line.strip())
                if not line.startswith(("unknown", "refused")):
                    if sum(done.startswith("ok") for done in after) >= _AFTER:
                        break
                    continue
                failed += 1
                if failed == _REFUSED:
                    ballast.unlink()
                elif failed == _FAILED_MAX:
                    break
        finally:
            child.kill()
    return before, after


async def _ids(directory: Path) -> list[bytes]:
    store = await LevelDBStore.open(directory)
    try:
        return await read_ids(store)
    finally:
        await store.close()


def main() -> None:
    """Play it through and print what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    arguments, options = parser.parse_known_args()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(arguments.directory)]
    subprocess.run(mount, check=True)
    before, after = _fill_and_free(arguments.directory, options)
    problems = check(arguments.directory / "data").problems
    there = set(asyncio.run(_ids(arguments.directory / "data"))) if not problems else set()
    acknowledged = [[line for line in lines if line.startswith("ok ")] for lines in (before, after)]
    missing = [
        line
        for lines in acknowledged
        for line in lines
        if not there.issuperset(rows_until(bytes.fromhex(line[3:])))
    ]
    seen = {
        "acknowledged": [len(lines) for lines in acknowledged],
        "unknown": before.count("unknown"),
        "read_while_full": [int(line.split()[1]) for line in before if line.startswith("refused")],
        "problems": problems,
        "missing": missing,
    }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
