"""A stand-in for a database on a full disk: the same contents, opened elsewhere, only to be read.

LevelDB writes when it opens a database: its logs as tables, and a new manifest. On a full disk it can't. So this
module makes a folder on another file system, in memory if there is one::

    STAND-IN/db/    links to the tables that the manifest names; copies of the logs, the manifest and CURRENT

LevelDB opens that, and writes there; the store itself does not change. The logs hold at most about twice the write
buffer. The process that serves the store removes the folder when it reopens the store, and when it closes it. If
that process dies, its successor removes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from broker.storage.leveldb import snapshot

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - The folder in it is made with mode 0700.


def make(database: Path) -> Path:
    """Make a stand-in for a database that no process has open, and return its folder. Raises OSError."""
    where = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    name = hashlib.sha256(os.fsencode(database.absolute())).hexdigest()[:16]
    prefix = f"broker-{name}-"
    for left in where.glob(f"{prefix}*"):  # The caller has the store's lock, so no process uses it.
        if left.lstat().st_uid == os.geteuid():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        snapshot.copy_closed(database.parent, folder, links_to=database.absolute())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
