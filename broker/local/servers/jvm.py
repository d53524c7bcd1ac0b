"""Java for the launchers: programs, class paths, and the options that old servers need on new JDKs.

The jars of a Maven project lie in ``lib/`` of its folder in the cache, and ``classpath`` names them
in Maven's order, one a line: with two jars of one class in it the order decides, and a wildcard
would leave that to the file system.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from broker.local.servers.cache_folder import ServerMissing, java_project, key_of_files, place
from broker.local.servers.process import program

# A quick start and a small footprint, at the price of speed: for tests, not for benchmarks.
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")


def java() -> str:
    """The ``java`` program.

    Raises:
        ServerMissing: There is none.
    """
    return program("java", "default-jdk-headless")


def opens(*packages: str) -> tuple[str, ...]:
    """Options that let old libraries reach into ``packages`` of java.base."""
    return tuple(
        word for package in packages for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
    )


def exports(*packages: str) -> tuple[str, ...]:
    """Options that let old libraries name ``packages`` of java.base."""
    return tuple(
        word
        for package in packages
        for word in ("--add-exports", f"java.base/{package}=ALL-UNNAMED")
    )


def installed(name: str) -> Path:
    """The folder of a fetched Maven project.

    Raises:
        ServerMissing: It was not fetched, or its recipe changed since.
    """
    folder = place(name, key_of_files(java_project(name)))
    if not folder.is_dir():
        message = f"{name} is not fetched: python -m broker.local.servers fetch {name}"
        raise ServerMissing(message)
    return folder


def class_path(folder: Path, *, first: Iterable[Path] = ()) -> str:
    """The class path of a fetched project: ``first``, its own classes, then its jars in order."""
    return ":".join(str(entry) for entry in (*first, folder / "classes", *jars(folder)))


def jars(folder: Path) -> list[Path]:
    """The jars of a fetched project, in Maven's order."""
    return [folder / "lib" / name for name in (folder / "classpath").read_text().split()]
