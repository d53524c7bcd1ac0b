"""Java for the launchers: programs, class paths, and the options that old servers need on new JDKs.

The jars of a Maven project are in ``lib/`` of its folder in the cache. The file ``classpath`` has their names in
Maven's order, one on each line. If two jars contain the same class, the order decides; with a wildcard the file
system would decide.
"""

from __future__ import annotations

from collections.abc import Iterable
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
