"""A full disk: a small tmpfs in its own mount namespace.

``command`` runs the program in the namespace, where it mounts the tmpfs on a directory. An appender fills it.
The program then frees some room, lets the appender go on, and kills it. It prints JSON: the acknowledged
appends, and the violations that the checkers find in the history of the appends and of the final log.

All this is one process tree, because the tmpfs ends with its namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey
from chaos import checkers
from chaos.appender import ids_in, rows_until
from chaos.history import History

_SIZE = "40m"
_BALLAST_BYTES = 24 << 20
_AFTER = 60
"""The number of appends to wait for after the disk has room again."""
_REFUSED = 5
"""After this many failed appends, the program frees some room."""
_FAILED_MAX = 10_000
"""After this many failed appends, the program takes the store for broken.

The appender may be ahead by the lines in the pipe. The number is larger than that, so some of the failed
appends began after the disk had room again.
"""


def command(directory: Path, *arguments: str) -> list[str]:
    """Return the command that runs this program on an empty directory, with the appender's options."""
    return in_own_mounts(sys.executable, "-m", "chaos.full_disk", str(directory), *arguments)


def in_own_mounts(*command: str) -> list[str]:
    """Return the command that runs ``command`` in a mount namespace: as root, or as root of a user namespace."""
    return ["unshare", "-m" if os.geteuid() == 0 else "-rm", *command]


def _fill_and_free(directory: Path, options: list[str]) -> tuple[list[str], list[str]]:
    """Run the appender; return its lines until the disk has room again, and those after."""
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(_BALLAST_BYTES))
    appender = [sys.executable, "-m", "chaos.appender", str(directory / "data")]
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
                    if _many(after, "ok") >= _AFTER:
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


def found_in(directory: Path) -> tuple[list[LogKey] | None, str]:
    """Return the ids in an appender's log; None and the reason if it can't be read."""
    try:
        return asyncio.run(ids_in(directory)), ""
    except StorageCorrupt as error:
        return None, str(error)


def history_of(lines: Sequence[str], final: Sequence[LogKey] | None, why: str) -> History:
    """Return the history of the appender's lines and of the final log; None for an unreadable log.

    A row's payload follows from its id, so the history has the id in place of the payload.
    """
    history = History(count().__next__)
    told = [line.partition(" ") for line in lines]
    appends = [(word, bytes.fromhex(last)) for word, _, last in told if word in {"ok", "unknown"}]
    newest = max((last for _, last in appends), default=LOG_KEY_MIN)
    # Rows above were in flight when the appender was killed.
    beyond = sorted({rows_until(row)[-1] for row in final or () if row > newest})
    for word, last in [*appends, *(("unknown", last) for last in beyond)]:
        ids = [row.hex() for row in rows_until(last)]
        asked = {"payloads": ids, "pointer": None, "key": None, "generation": 1}
        ending = history.invoke("appender", "publish", "log", asked)
        if word == "ok":
            ending.ok({"last": ids[-1]}, ids[0])
        else:
            ending.unknown("the disk was full, or the appender was killed")
    bounds = {"after": LOG_KEY_MIN.hex(), "through": LOG_KEY_MAX.hex(), "generation": 1}
    ending = history.invoke("final", "read", "log", bounds)
    if final is None:
        ending.fail(why)
    else:
        rows = [[row.hex(), row.hex(), None] for row in final]
        last_id = rows[-1][0] if rows else LOG_KEY_MIN.hex()
        ending.ok({"rows": rows, "seen": last_id, "floor": "", "pointer": last_id})
    return history


def _many(lines: Sequence[str], word: str) -> int:
    return sum(line.startswith(f"{word} ") for line in lines)


def main() -> None:
    """Run the appender on a full disk, and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    arguments, options = parser.parse_known_args()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(arguments.directory)]
    subprocess.run(mount, check=True)
    before, after = _fill_and_free(arguments.directory, options)
    with tempfile.TemporaryDirectory() as elsewhere:
        # Opening the database needs room too, so open a copy on another disk.
        copy = shutil.copytree(arguments.directory / "data", Path(elsewhere) / "data")
        final, why = found_in(copy)
    verdict = checkers.check(history_of([*before, *after], final, why).calls())
    seen = {
        "acknowledged": [_many(before, "ok"), _many(after, "ok")],
        "unknown": _many(before, "unknown"),
        "read_while_full": [int(line.split()[1]) for line in before if line.startswith("refused")],
        "unreadable": why,
        "violations": sorted(verdict.names),
    }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
