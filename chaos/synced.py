"""The synced bytes of a process's files, found by replaying its system calls.

A kill loses no written byte, synced or not. A power cut loses the unsynced bytes. This module imitates a power
cut from a trace (strace) of the process. It keeps only those bytes of each file that were written before its
last completed sync began.

It assumes that file names are durable at once, as a journalling file system keeps them in order. It does not
check that LevelDB syncs its directory. File systems write pages back in any order, so ``scramble_copy`` puts
arbitrary data after the last synced byte::

    write(7</db/000007.log>, …) = 312            written[000007.log] += 312
    fdatasync(7</db/000007.log>) = 0             synced[000007.log] = written before it began
    rename("a", "b")                             b takes the counts of a
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TRACED = "write,pwrite64,writev,fsync,fdatasync,msync,rename,renameat,renameat2,unlink,unlinkat,ftruncate"
_LINE = re.compile(r"^(?P<pid>\d+) +(?:<\.\.\. \w+ resumed>)?(?P<rest>.*)$")
_CALL = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)$")
_RESULT = re.compile(r"\) += (?P<result>-?\d+)")
_FILE = re.compile(r"^\d+<(?P<path>[^>]*)>")
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PAGE = 4096
_SYNCS = frozenset({"fsync", "fdatasync"})


def traced(trace: Path, command: list[str]) -> list[str]:
    """Return the command that runs ``command`` and writes its trace to a file."""
    options = ["--seccomp-bpf", "-f", "-y", "-s", "0", "-qq", "-e", f"trace={TRACED}"]
    return ["strace", *options, "-o", str(trace), *command]


@dataclass(slots=True)
class Disk:
    """The files of a trace: written and synced bytes by path."""

    written: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    syncs: dict[str, int] = field(default_factory=dict)
    """The number of completed syncs, by path."""

    def syncs_of(self, suffix: str) -> int:
        """Return the number of syncs of files with this suffix."""
        return sum(number for path, number in self.syncs.items() if path.endswith(suffix))


def replay(lines: Iterable[str], disk: Disk | None = None) -> Disk:
    """Replay a trace from its beginning; ``disk`` is the state before it."""
    disk = disk or Disk()
    begun: dict[str, tuple[str, str, int]] = {}
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:
            continue
        pid, rest = matched["pid"], matched["rest"]
        called = _CALL.match(rest)
        if called is not None:
            name, arguments = called["name"], called["arguments"]
            opened = _FILE.match(arguments)
            at_begin = disk.written.get(opened["path"], 0) if opened else 0
            if rest.endswith("<unfinished ...>"):
                begun[pid] = (name, arguments, at_begin)
                continue
        elif pid in begun:
            name, arguments, at_begin = begun.pop(pid)
        else:
            continue
        result = _RESULT.search(rest)
        if result is not None and int(result["result"]) >= 0:
            _apply(disk, name, arguments, int(result["result"]), at_begin)
    return disk


def _apply(disk: Disk, name: str, arguments: str, result: int, at_begin: int) -> None:
    opened = _FILE.match(arguments)
    if opened is not None:
        path = opened["path"]
        if name in _SYNCS:
            disk.synced[path] = max(at_begin, disk.synced.get(path, 0))
            disk.syncs[path] = disk.syncs.get(path, 0) + 1
        elif name in {"write", "writev", "pwrite64"}:
            disk.written[path] = disk.written.get(path, 0) + result
        return
    names = _NAME.findall(arguments)
    if name.startswith("rename"):
        for known in (disk.written, disk.synced):
            if names[0] in known:
                known[names[1]] = known.pop(names[0])
    elif name.startswith("unlink"):
        for known in (disk.written, disk.synced):
            known.pop(names[0], None)


def cut_copy(directory: Path, disk: Disk, target: Path) -> None:
    """Copy a directory; cut each file that the trace wrote at its last synced byte."""
    shutil.copytree(directory, target)
    for path in target.rglob("*"):
        traced_path = str(directory / path.relative_to(target))
        if path.is_file() and traced_path in disk.written:
            with path.open("r+b") as file:
                file.truncate(disk.synced.get(traced_path, 0))


def scramble_copy(directory: Path, disk: Disk, target: Path, chance: random.Random) -> int:
    """Copy a directory; put arbitrary data into the unsynced pages of each file that the trace wrote.

    Returns the number of changed files.
    """
    shutil.copytree(directory, target)
    changed = 0
    for path in sorted(target.rglob("*")):
        traced_path = str(directory / path.relative_to(target))
        if path.is_file() and traced_path in disk.written:
            before = path.read_bytes()
            after = scrambled(before, disk.synced.get(traced_path, 0), chance)
            path.write_bytes(after)
            changed += before != after
    return changed


def scrambled(data: bytes, synced: int, chance: random.Random) -> bytes:
    """Return a file after a power cut: after ``synced``, each page is as written, zeros, or garbage.

    The file system may have kept the file's new length, or a shorter one.
    """
    kept = bytearray(data[:synced])
    if chance.random() < 0.2:
        return bytes(kept)
    end = len(data) if chance.random() < 0.7 else chance.randint(synced, len(data))
    fates = chance.choice(
        ["zero", "random", "zero random", "zero kept", "zero random kept", "kept"]
    )
    at = synced
    while at < end:
        stop = min(end, at - at % _PAGE + _PAGE)
        fate = chance.choice(fates.split())
        if fate == "kept":
            kept += data[at:stop]
        else:
            kept += bytes(stop - at) if fate == "zero" else chance.randbytes(stop - at)
        at = stop
    return bytes(kept)
