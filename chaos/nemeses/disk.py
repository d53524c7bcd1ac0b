"""Disk faults of a broker over LevelDB: power cuts, a full disk, flipped bits.

A power cut is a kill after which every file is cut to its last synced byte. A torn one leaves arbitrary data
after that byte: written pages, zeros or garbage, in any order.

The broker must notice a flipped bit. It may refuse to start or to answer, but every answer must be true. In
the end the nemesis flips the bit back, or restores the files.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from typing_extensions import override

from broker.local.servers import ServerFailed
from broker.storage.leveldb.torn_tail import writes
from chaos.nemesis import Repeated
from chaos.standalone import NODE, Standalone
from chaos.synced import scrambled
from chaos.target import Ability, Target, Unable

CHUNK_BYTES: Final = 1 << 20
RUN_S: Final = (2.0, 6.0)
TABLES: Final = (".log", ".ldb")


def _standalone(target: Target) -> Standalone:
    if not isinstance(target, Standalone):
        raise Unable("only a standalone broker has files that the verifier can reach")
    return target


class PowerCut(Repeated):
    """SIGKILL of the broker, and loss of its unsynced bytes; a torn cut scrambles them."""

    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.FILES})

    def __init__(self, name: str, *, torn: bool) -> None:
        super().__init__()
        self.name = name
        end = "scrambled" if torn else "lost"
        self.__doc__ = f"SIGKILL of the broker; its unsynced bytes are {end}."
        self._torn = torn

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        broker = _standalone(target)
        await broker.kill(NODE)
        cut = await asyncio.to_thread(self._cut, broker, chance)
        await broker.start(NODE)
        return {"bytes_unsynced": cut}

    def _cut(self, broker: Standalone, chance: random.Random) -> int:
        """Cut or scramble the unsynced ends of the files; return the number of unsynced bytes."""
        disk, lost = broker.written(), 0
        for name, written in sorted(disk.written.items()):
            path = Path(name)
            if not path.is_file() or not path.is_relative_to(broker.data):
                continue
            synced = disk.synced.get(name, 0)
            before = path.stat().st_size
            if self._torn:
                path.write_bytes(scrambled(path.read_bytes(), min(synced, before), chance))
            else:
                os.truncate(path, min(synced, before))
            lost += max(min(written, before) - synced, 0)
        return lost


class FullDisk:
    """The disk is full."""

    name = "disk-full"
    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.SMALL_DISK})

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Fill the disk."""
        del chance
        return {"ballast_bytes": await asyncio.to_thread(_fill, _ballast(target))}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Free the disk."""
        broker = _standalone(target)
        free = shutil.disk_usage(broker.disk).free
        _ballast(target).unlink(missing_ok=True)
        return {"happened": free < CHUNK_BYTES, "free_bytes": free}


def _ballast(target: Target) -> Path:
    return _standalone(target).disk / "ballast"


def _fill(ballast: Path) -> int:
    with ballast.open("ab", buffering=0) as file:
        for size in (CHUNK_BYTES, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
        return file.tell()


class Flipped(NamedTuple):
    """One bit of a file."""

    path: Path
    offset: int
    bit: int

    def flip(self) -> None:
        """Flip the bit. A second call flips it back."""
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            (byte,) = file.read(1)
            file.seek(self.offset)
            file.write(bytes([byte ^ 1 << self.bit]))


def _known_bytes(path: Path) -> int:
    """Return the length of the part of a file in which the broker must notice a flipped bit.

    After a kill, the last write of a log looks like an unsynced one. The broker may cut it off, so the part
    ends before it.
    """
    if path.suffix != ".log":
        return path.stat().st_size
    last = None
    for last in writes(path.read_bytes()):  # noqa: B007 - The loop finds the last write.
        pass
    return 0 if last is None else last.records[0]


def _files(data: Path) -> list[tuple[Path, int]]:
    """Return the files of a database in which a bit can be flipped, each with its ``_known_bytes``."""
    paths = (path for path in data.rglob("*") if path.is_file() and path.suffix in TABLES)
    return [(path, known) for path in sorted(paths) if (known := _known_bytes(path))]


class FlippedBit(Repeated):
    """One bit of the database is wrong for some seconds."""

    name = "flipped-bit"
    needs = frozenset({Ability.FILES})

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        broker = _standalone(target)
        await broker.kill(NODE)
        files = await asyncio.to_thread(_files, broker.data)
        if not files:
            await broker.start(NODE)
            return None
        path, known = chance.choice(files)
        flipped = Flipped(path, chance.randrange(known), chance.randrange(8))
        kept = broker.folder / "kept"
        await asyncio.to_thread(shutil.copytree, broker.data, kept)
        flipped.flip()
        try:
            started = await self._run(broker, chance)
            await broker.kill(NODE)
            # A broker that refused to start wrote no message, so the copy is complete.
            if not started:
                await asyncio.to_thread(shutil.rmtree, broker.data)
                await asyncio.to_thread(shutil.copytree, kept, broker.data)
            elif path.exists():
                flipped.flip()
        finally:
            await asyncio.to_thread(shutil.rmtree, kept)
        await broker.start(NODE)
        return {"file": path.name, "offset": flipped.offset, "noticed_at_start": not started}

    async def _run(self, broker: Standalone, chance: random.Random) -> bool:
        """Start the broker with the wrong bit; return True if it starts."""
        try:
            await broker.start(NODE)
        except ServerFailed:
            return False
        await self.rest(chance.uniform(*RUN_S))
        return True
