"""A disk that is really full: a small tmpfs in a mount namespace of its own.

``unshare -m python -m chaos.full_disk DIR`` (as root; ``unshare -rm`` else) mounts it on DIR, lets
an appender fill it, frees some room, lets it go on, kills it, and prints as JSON what was acknowledged and
what the checkers find in the history of its appends and of what is there. It all happens in one process tree, because the tmpfs goes with its namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from broker.errors import StorageCorrupt
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId
from chaos import checkers
from chaos.appender import ids_in, rows_until
from chaos.history import History

_SIZE = "40m"
_BALLAST_BYTES = 24 << 20
_AFTER = 60
"""Appends that are waited for after room was made."""
_REFUSED = 5
_FAILED_MAX = 10_000
"""A store that does not recover is given up after so many failed appends: more than the pipe holds by
which the appender may be ahead, so that some were tried after room was made."""


def command(directory: Path, *arguments: str) -> list[str]:
    """Return the command that plays it through on an empty directory, with the appender's options."""
    return [
        *("unshare", "-rm", sys.executable, "-m", "chaos.full_disk", str(directory)),
        *arguments,
    ]


def _fill_and_free(directory: Path, options: list[str]) -> tuple[list[str], list[str]]:
    """Return the appender's lines until room was made, and those after."""
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


def found_in(directory: Path) -> tuple[list[RowId] | None, str]:
    """Return what an appender left; None, and why, if it can't be read."""
    try:
        return asyncio.run(ids_in(directory)), ""
    except StorageCorrupt as error:
        return None, str(error)


def history_of(lines: Sequence[str], there: Sequence[RowId] | None, why: str) -> History:
    """Return what the appender was told, and the log as it ended: None if it can't be read.

    A row's payload follows from its id, and so the id stands for it.
    """
    history = History(count().__next__)
    told = [line.partition(" ") for line in lines]
    appends = [(word, bytes.fromhex(last)) for word, _, last in told if word in {"ok", "unknown"}]
    newest = max((last for _, last in appends), default=ROW_ID_MIN)
    # Whatever lies above was under way when the appender was killed.
    beyond = sorted({rows_until(row)[-1] for row in there or () if row > newest})
    for word, last in [*appends, *(("unknown", last) for last in beyond)]:
        ids = [row.hex() for row in rows_until(last)]
        asked = {"payloads": ids, "pointer": None, "key": None, "generation": 1}
        ending = history.invoke("appender", "publish", "log", asked)
        if word == "ok":
            ending.ok({"last": ids[-1]}, ids[0])
        else:
            ending.unknown("the disk was full, or the appender was killed")
    bounds = {"after": ROW_ID_MIN.hex(), "through": ROW_ID_MAX.hex(), "generation": 1}
    ending = history.invoke("final", "read", "log", bounds)
    if there is None:
        ending.fail(why)
    else:
        rows = [[row.hex(), row.hex(), None] for row in there]
        last_id = rows[-1][0] if rows else ROW_ID_MIN.hex()
        ending.ok({"rows": rows, "seen": last_id, "floor": "", "pointer": last_id})
    return history


def _many(lines: Sequence[str], word: str) -> int:
    return sum(line.startswith(f"{word} ") for line in lines)


def main() -> None:
    """Play it through and print what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    arguments, options = parser.parse_known_args()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(arguments.directory)]
    subprocess.run(mount, check=True)
    before, after = _fill_and_free(arguments.directory, options)
    with tempfile.TemporaryDirectory() as elsewhere:
        # Looking needs room too: on the disk itself, that might be what is wrong.
        copy = shutil.copytree(arguments.directory / "data", Path(elsewhere) / "data")
        there, why = found_in(copy)
    verdict = checkers.check(history_of([*before, *after], there, why).calls())
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
