"""A copy of a store's database for inspection, of one moment, also while a broker serves the store.

LevelDB writes each table file once. So a copy uses hard links to the tables, and needs disk space for the logs
only. It links only tables that the manifest names. The reason: when LevelDB opens the copy, it writes new tables,
and their numbers may be those of tables that the manifest does not name yet. Through a link, LevelDB would write
into the store.

The files of a closed store do not change. If a broker serves the store, three rules of LevelDB (impl.md) make the
copy a state of one moment:

- LevelDB removes a table or a log only after an edit of the manifest that no longer needs it.
- A table is complete before an edit names it.
- A log is complete before the next log begins.

So if the manifest is the same before and after the copy, the copy has all files that it names. Of the logs that
were there before, only the last may lack its end. When the copy is opened, that end is cut (torn_tail.py), as after
a crash. The copy has all writes that were acknowledged before it began.
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
    """Copy the database of a closed store to ``target``/db, without links."""
    copy = target / DATABASE
    copy.mkdir(parents=True)
    for path in (directory / DATABASE).iterdir():
        if path.is_file():
            shutil.copyfile(path, copy / path.name)


def copy_closed(directory: Path, target: Path, *, links_to: Path | None = None) -> None:
    """Copy the database of a closed store to ``target``/db; without tables if the manifest can't be read.

    With ``links_to``, the database's absolute path, the links to tables are symbolic ones: the target may be on
    another file system.
    """
    database, copy = directory / DATABASE, target / DATABASE
    copy.mkdir(parents=True)
    with contextlib.suppress(OSError, ValueError, torn_tail.Damaged):  # LevelDB reports the damage.
        _link_tables(database, copy, manifest_of(database)[1], links_to)
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
        except FileNotFoundError as error:  # LevelDB removed the file, so the manifest has changed.
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
    """Copy once; return True if the copy is a state of one moment."""
    name, edits = manifest_of(database)
    logs = list(database.glob("*.log"))
    _link_tables(database, copy, edits)
    for log in logs:
        shutil.copyfile(log, copy / log.name)
    (copy / name).write_bytes(edits)
    (copy / "CURRENT").write_text(f"{name}\n")
    return manifest_of(database) == (name, edits)


def _link_tables(database: Path, copy: Path, edits: bytes, links_to: Path | None = None) -> None:
    named = torn_tail.table_numbers(edits)
    for path in database.iterdir():
        if path.suffix in _TABLES and path.stem.isdigit() and int(path.stem) in named:
            if links_to is None:
                (copy / path.name).hardlink_to(path)
            else:
                (copy / path.name).symlink_to(links_to / path.name)


def manifest_of(database: Path) -> tuple[str, bytes]:
    """Return the name and the contents of the manifest. Raises OSError, ValueError."""
    name = torn_tail.current_of(database).strip()
    return name, (database / name).read_bytes()
