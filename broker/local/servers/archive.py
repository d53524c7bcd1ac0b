"""An archive of HBase's classes (class data sharing), parsed and verified once, for every JVM of the tests.

A JVM of HBase spends most of its start on reading some ten thousand classes. With the archive a cluster of four JVMs
needs 8 seconds of CPU time to start, instead of 13. The JVMs also share the memory of the classes.

``write`` makes the archive from a whole HBase in one JVM, which loads nearly all classes of the separate servers.
The JVM accepts an archive only if the class path begins as it did when the archive was made. So jars come first on
every class path, and folders, which differ, after them. If the archive is missing or does not fit (another JDK),
the JVM ignores it: all programs work, but start more slowly.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from broker.local.servers import jvm
from broker.local.servers.cache_folder import java_project, key_of_files, place
from broker.local.servers.process import program

RECORDING = "-XX:+RecordDynamicDumpInfo"
"""The JVM option that is required to write an archive."""

FILE = "classes.jsa"
_OWN_JAR = "own.jar"
_DUMP_S = 120.0


def class_path(*folders: Path) -> str:
    """Return the class path of a program: HBase's jars, our own classes, then ``folders``.

    Raises:
        ServerMissing: HBase is not fetched.
    """
    installed = jvm.installed("hbase")
    own = installed / _OWN_JAR
    classes = own if own.is_file() else installed / "classes"
    return ":".join(map(str, (*jvm.jars(installed), classes, *folders)))


def pack_own() -> None:
    """Put our own classes into a jar: the JVM does not archive classes that come from a folder."""
    installed = jvm.installed("hbase")
    packing = installed / f"{_OWN_JAR}.tmp"
    with zipfile.ZipFile(packing, "w") as jar:
        for path in sorted((installed / "classes").rglob("*.class")):
            jar.write(path, path.relative_to(installed / "classes"))
    packing.rename(installed / _OWN_JAR)


def sharing() -> Sequence[str]:
    """Return the JVM options that use the archive; none if there is no archive."""
    archive = target() / FILE
    return (f"-XX:SharedArchiveFile={archive}",) if archive.is_file() else ()


def target() -> Path:
    """Return the path of the archive for the current jars and JVM."""
    java = Path(jvm.java()).resolve()
    of_java = f"{java} {java.stat().st_mtime_ns} {java.stat().st_size}"
    of_jars = key_of_files(java_project("hbase"))
    return place("hbase-classes", hashlib.sha256(f"{of_jars} {of_java}".encode()).hexdigest()[:12])


def write(pid: int, file: Path) -> None:
    """Write an archive of the classes that a JVM, started with ``RECORDING``, has loaded.

    Raises:
        subprocess.SubprocessError: The JVM does not write it.
    """
    command = [program("jcmd", "default-jdk-headless"), str(pid), "VM.cds", "dynamic_dump"]
    subprocess.run([*command, str(file)], check=True, capture_output=True, timeout=_DUMP_S)
