"""The keys of a damaged database, as far as they can be read without a check."""

from __future__ import annotations

import shutil
from pathlib import Path

import plyvel


class RawKeys:
    """The keys of a damaged database, read without a check of their blocks."""

    def __init__(self, path: Path) -> None:
        """Open the database at ``path``. If that fails, no key is known."""
        self._path = path
        try:
            self._db = plyvel.DB(str(path), paranoid_checks=False)
        except (plyvel.Error, OSError):
            self._db = None

    def of(self, prefix: bytes) -> list[bytes]:
        """Return the keys with a prefix, as far as they can be read."""
        if self._db is None:
            return []
        try:
            with self._db.iterator(prefix=prefix, include_value=False) as found:
                return list(found)
        except plyvel.Error:
            return []

    def close(self) -> None:
        """Close the database, and remove it."""
        if self._db is not None:
            self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)
