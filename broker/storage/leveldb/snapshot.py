"""A copy of a store's database to look at, of one moment, also while a broker serves the store.

LevelDB writes each table once, so a copy has hard links of them, and takes the room of the logs alone. It
has those that the manifest names and no others: LevelDB opens a copy by writing tables of its own, whose
numbers may be those of tables that are not named yet; over a link it would write into the store.

Of a closed store all files are as they were left. Of one that is served, the copy is of one moment by three rules
of LevelDB (impl.md): a table or a log goes only after an edit of the manifest that does without it; a table is
whole before an edit names it; a log is whole before the next one begins. So if the manifest is the same before and
after, the copy has all that it names; and of the logs that were there before, only the last may lack its end.
That end is cut when the copy is opened (torn_tail.py), as after a crash. All that was acknowledged before is in it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final

from broker.errors import Unavailable
from broker.storage.leveldb import torn_tail
from broker.storage.leveldb.files import DATABASE, corrupt

TRIES: Final = 100
_TABLES: Final = frozenset({".ldb", ".sst"})


def copy_all(directory: Path, target: Path) -> None:
    """Copy the database of a closed store to ``target``/db; nothing is shared."""
    copy = target / DATABASE
    copy.mkdir(parents=True)
    for path in (directory / DATABASE).iterdir():
        if path.is_file():
            shutil.copyfile(path, copy / path.name)


def copy_closed(directory: Path, target: Path) -> None:
    """Copy the database of a closed store to ``target``/db; no tables if the manifest can't be read."""
    database, copy = directory / DATABASE, target / DATABASE
    copy.mkdir(parents=True)
    with contextlib.suppress(OSError, ValueError, torn_tail.Damaged):  # LevelDB says what is wrong.
        _link_tables(database, copy, _manifest(database)[1])
    for path in database.iterdir():
        if path.is_file() and path.suffix not in _TABLES:
            shutil.copyfile(path, copy / path.name)


def copy_served(directory: Path, target: Path) -> None:
    """Copy the database of a store that a process has open to ``target``/db.

    Raises:
        Unavailable: its files changed during each of TRIES tries.
        StorageCorrupt: CURRENT or the manifest that it names is missing or can't be read.
    """
    copy, missing = target / DATABASE, list[Path]()
    for _ in range(TRIES):
        copy.mkdir(parents=True)
        try:
            if _is_copied(directory / DATABASE, copy):
                return
        except FileNotFoundError as error:  # LevelDB removed it, so the manifest has changed.
            missing.append(Path(error.filename))
        except torn_tail.Damaged as error:
            raise corrupt(directory, f"its manifest: {error}") from error
        shutil.rmtree(copy)
    if len(missing) == TRIES and len(set(missing)) == 1:
        raise corrupt(directory, f"{DATABASE}/{missing[0].name} is missing")
    raise Unavailable(
        f"the files of the store in {directory} change faster than they can be copied; try again"
    )


def _is_copied(database: Path, copy: Path) -> bool:
    """Copy once; return whether the copy is of one moment."""
    name, edits = _manifest(database)
    logs = list(database.glob("*.log"))
    _link_tables(database, copy, edits)
    for log in logs:
        shutil.copyfile(log, copy / log.name)
    (copy / name).write_bytes(edits)
    (copy / "CURRENT").write_text(f"{name}\n")
    return _manifest(database) == (name, edits)


def _link_tables(database: Path, copy: Path, edits: bytes) -> None:
    named = torn_tail.table_numbers(edits)
    for path in database.iterdir():
        if path.suffix in _TABLES and path.stem.isdigit() and int(path.stem) in named:
            (copy / path.name).hardlink_to(path)


def _manifest(database: Path) -> tuple[str, bytes]:
    name = (database / "CURRENT").read_text().strip()
    return name, (database / name).read_bytes()
