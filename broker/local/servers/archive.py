"""An archive of HBase's classes, parsed and checked once, that every JVM of the tests maps.

A JVM of HBase spends most of its start on reading some ten thousand classes. With the archive a cluster of
four JVMs starts with 8 seconds of a processor instead of 13, and a page of classes is in memory once for
all of them. It is made from one whole HBase in one JVM, which loads nearly all that the separate servers
load. The JVM takes an archive only for the class path from which it was made, as far as that was used; so
the jars come first on every class path, and folders, which differ, after them. An archive that does not fit
(another JDK) is passed over by the JVM, as is one that is not there: all works, and starts slower.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from broker.local.servers import jvm
from broker.local.servers.cache_folder import java_project, key_of_files, place
from broker.local.servers.process import ServerProcess, program

RECORDING = "-XX:+RecordDynamicDumpInfo"
"""The JVM's option without which it can't write an archive."""

_FILE = "classes.jsa"
_OWN_JAR = "own.jar"
_DUMP_S = 120.0


def class_path(*folders: Path) -> str:
    """The class path of a program from HBase's jars and our own classes, then ``folders``.

    Raises:
        ServerMissing: HBase is not fetched.
    """
    installed = jvm.installed("hbase")
    own = installed / _OWN_JAR
    classes = own if own.is_file() else installed / "classes"
    return ":".join(map(str, (*jvm.jars(installed), classes, *folders)))


def pack_own() -> None:
    """Put our own classes into a jar: no archive is made of what was loaded from a folder."""
    installed = jvm.installed("hbase")
    packing = installed / f"{_OWN_JAR}.tmp"
    with zipfile.ZipFile(packing, "w") as jar:
        for path in sorted((installed / "classes").rglob("*.class")):
            jar.write(path, path.relative_to(installed / "classes"))
    packing.rename(installed / _OWN_JAR)


def sharing() -> Sequence[str]:
    """The JVM options that use the archive, if there is one."""
    archive = target() / _FILE
    return (f"-XX:SharedArchiveFile={archive}",) if archive.is_file() else ()


def target() -> Path:
    """Where the archive for these jars and this JVM lies."""
    java = Path(jvm.java()).resolve()
    of_java = f"{java} {java.stat().st_mtime_ns} {java.stat().st_size}"
    of_jars = key_of_files(java_project("hbase"))
    return place("hbase-classes", hashlib.sha256(f"{of_jars} {of_java}".encode()).hexdigest()[:12])


def write(server: ServerProcess, folder: Path) -> None:
    """Let a server that runs with ``RECORDING`` write what it has loaded.

    Raises:
        subprocess.SubprocessError: It does not.
    """
    command = [program("jcmd", "default-jdk-headless"), str(server.pid), "VM.cds", "dynamic_dump"]
    subprocess.run(
        [*command, str(folder / _FILE)], check=True, capture_output=True, timeout=_DUMP_S
    )
