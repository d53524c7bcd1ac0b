"""Java for the launchers: programs, class paths, and the options that old servers need on new JDKs.

The jars of a Maven project are in ``lib/`` of its folder in the cache. The file ``classpath`` has their names in
Maven's order, one on each line. If two jars contain the same class, the order decides; with a wildcard the file
system would decide.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from broker.local.servers.cache_folder import ServerMissing, java_project, key_of_files, place
from broker.local.servers.process import program

# A fast start and little memory, but slower code: for tests, not for benchmarks.
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")


def java() -> str:
    """Return the path of the program ``java``.

    Raises:
        ServerMissing: Java is not installed.
    """
    return program("java", "default-jdk-headless")


def opens(*packages: str) -> tuple[str, ...]:
    """Return the options with which old libraries may use reflection in ``packages`` of java.base."""
    return tuple(
        word for package in packages for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
    )


def exports(*packages: str) -> tuple[str, ...]:
    """Return the options with which old libraries may use ``packages`` of java.base."""
    return tuple(
        word
        for package in packages
        for word in ("--add-exports", f"java.base/{package}=ALL-UNNAMED")
    )


def installed(name: str) -> Path:
    """Return the folder of a fetched Maven project.

    Raises:
        ServerMissing: It was not fetched, or its recipe has changed since.
    """
    folder = place(name, key_of_files(java_project(name)))
    if not folder.is_dir():
        message = f"{name} is not fetched; in a checkout: make test-servers SERVERS={name}"
        raise ServerMissing(message)
    return folder


def class_path(folder: Path, *, first: Iterable[Path] = ()) -> str:
    """Return the class path of a fetched project: ``first``, its own classes, then its jars in order."""
    return ":".join(str(entry) for entry in (*first, folder / "classes", *jars(folder)))


def jars(folder: Path) -> list[Path]:
    """Return the jars of a fetched project, in Maven's order."""
    return [folder / "lib" / name for name in (folder / "classpath").read_text().split()]


# --- The archive -----------------------------------------------------------------------------------
#
# An archive of HBase's classes (class data sharing), parsed and verified once, for every JVM of the tests.
#
# A JVM of HBase spends most of its start on reading some ten thousand classes. With the archive a cluster of four JVMs
# needs 8 seconds of CPU time to start, instead of 13. The JVMs also share the memory of the classes.
#
# ``write_archive`` makes the archive from a whole HBase in one JVM, which loads nearly all classes of the separate servers.
# The JVM accepts an archive only if the class path begins as it did when the archive was made. So jars come first on
# every class path, and folders, which differ, after them. If the archive is missing or does not fit (another JDK),
# the JVM ignores it: all programs work, but start more slowly.

RECORDING = "-XX:+RecordDynamicDumpInfo"
"""The JVM option that is required to write an archive."""

FILE = "classes.jsa"
_OWN_JAR = "own.jar"
_DUMP_S = 120.0


def shared_class_path(*folders: Path) -> str:
    """Return the class path of a program: HBase's jars, our own classes, then ``folders``.

    Raises:
        ServerMissing: HBase is not fetched.
    """
    folder = installed("hbase")
    own = folder / _OWN_JAR
    classes = own if own.is_file() else folder / "classes"
    return ":".join(map(str, (*jars(folder), classes, *folders)))


def pack_own() -> None:
    """Put our own classes into a jar: the JVM does not archive classes that come from a folder."""
    folder = installed("hbase")
    packing = folder / f"{_OWN_JAR}.tmp"
    with zipfile.ZipFile(packing, "w") as jar:
        for path in sorted((folder / "classes").rglob("*.class")):
            jar.write(path, path.relative_to(folder / "classes"))
    packing.rename(folder / _OWN_JAR)


def sharing() -> Sequence[str]:
    """Return the JVM options that use the archive; none if there is no archive."""
    file = archive() / FILE
    return (f"-XX:SharedArchiveFile={file}",) if file.is_file() else ()


def archive() -> Path:
    """Return the path of the archive for the current jars and JVM."""
    binary = Path(java()).resolve()
    of_java = f"{binary} {binary.stat().st_mtime_ns} {binary.stat().st_size}"
    of_jars = key_of_files(java_project("hbase"))
    return place("hbase-classes", hashlib.sha256(f"{of_jars} {of_java}".encode()).hexdigest()[:12])


def write_archive(pid: int, file: Path) -> None:
    """Write an archive of the classes that a JVM, started with ``RECORDING``, has loaded.

    Raises:
        subprocess.SubprocessError: The JVM does not write it.
    """
    command = [program("jcmd", "default-jdk-headless"), str(pid), "VM.cds", "dynamic_dump"]
    subprocess.run([*command, str(file)], check=True, capture_output=True, timeout=_DUMP_S)
