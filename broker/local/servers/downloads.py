"""Fetch servers into the cache with Maven.

Every recipe is idempotent, and needs no network after its result is cached. If a recipe fails, its error names the
missing part in one line. Maven runs offline first: if its own store has all files, that takes seconds and no
registry.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.escapes import escaped_lines
from broker.local.servers import cache_folder, hbase, jvm
from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.process import (
    ServerFailed,
    await_answer,
    free_ports,
    program,
    start_child,
    tied_to_us,
)

Report = Callable[[str], None]

_MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_PROGRESS_S = 5.0
_READY_S = 120.0


class Recipe(NamedTuple):
    """The functions that fetch one server, and that check it; both raise ServerMissing."""

    fetch: Callable[[str, Report], None]
    check: Callable[[str], None]


def fetch(name: str, recipe: Recipe, report: Report) -> None:
    """Fetch the server ``name``, unless it is in the cache.

    Args:
        name: The server.
        recipe: The functions that fetch and check it.
        report: Gets progress lines.

    Raises:
        ServerMissing: It can't be fetched; the message names the missing part.
    """
    with cache_folder.locked():
        recipe.fetch(name, report)


def fetch_maven(name: str, report: Report) -> None:
    """Fetch the jars of a Java project, and compile its sources. Raises ServerMissing."""
    project = cache_folder.java_project(name)
    target = cache_folder.place(name, cache_folder.key_of_files(project))
    if target.is_dir():
        report(f"{name}: cached")
        return
    for tool, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        program(tool, package)
    began = time.monotonic()

    def make(folder: Path) -> None:
        _copy_jars(name, project, folder, report)
        _compile(name, project, folder, report)

    cache_folder.build(target, make)
    count, size = _jars(target)
    report(f"{name}: {count} jars, {size >> 20} MB, {time.monotonic() - began:.0f} s")


def _fetch_hbase(name: str, report: Report) -> None:
    fetch_maven(name, report)
    target = jvm.archive()
    if target.is_dir():
        return
    report(f"{name}: starting it once, to make the archive of its classes")

    def make(folder: Path) -> None:
        jvm.pack_own()
        _record(name, folder / jvm.FILE)

    began = time.monotonic()
    try:
        cache_folder.build(target, make)
        report(f"{name}: made the archive, {time.monotonic() - began:.0f} s")
    except (ServerFailed, subprocess.SubprocessError) as error:
        report(f"{name}: there is no archive, so each start takes longer: {error}")


def _record(name: str, archive: Path) -> None:
    """Write the archive of the classes that an HBase in one JVM loads. Raises ServerFailed, SubprocessError."""
    ports = free_ports(hbase.PORTS_OF_ALL)
    options = (*jvm.QUICK, "-Xmx768m", jvm.RECORDING)
    with (
        tempfile.TemporaryDirectory(prefix="broker-hbase-") as home,
        log_of(name).open("ab") as log,
    ):
        command = tied_to_us(hbase.all_in_one(Path(home), ports, options, {}))
        with start_child(command, stderr=log) as server:
            try:
                deadline = time.monotonic() + _READY_S
                failed = await_answer(
                    lambda: hbase.all_answer(ports),
                    lambda: None if server.poll() is None else "it ended",
                    deadline,
                )
                if failed is not None:
                    raise ServerFailed(f"{failed}; see {log_of(name)}")
                jvm.write_archive(server.pid, archive)
            finally:
                server.kill()


def _copy_jars(name: str, project: Path, folder: Path, report: Report) -> None:
    """Fill ``lib/`` with the project's jars and ``classpath`` with their names in Maven's order."""
    paths = folder / "paths"
    command = [
        program("mvn", "maven"),
        "--batch-mode",
        f"--file={project / 'pom.xml'}",
        f"{_MAVEN_PLUGIN}:copy-dependencies",
        f"{_MAVEN_PLUGIN}:build-classpath",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={folder / 'lib'}",
        f"-Dmdep.outputFile={paths}",
        "-Dmdep.pathSeparator=:",
    ]
    log = log_of(name)
    if run([*command, "--offline"], log) != 0:
        report(f"{name}: fetching with Maven (50 to 110 MB, once)")
        if run(command, log, lambda line: report(f"{name}: {line}")) != 0:
            raise ServerMissing(f"Maven could not fetch it (is there a network?); see {log}")
    names = [Path(path).name for path in paths.read_text().strip().split(":")]
    (folder / "classpath").write_text("\n".join(names) + "\n")
    paths.unlink()


def _compile(name: str, project: Path, folder: Path, report: Report) -> None:
    """Fill ``classes/`` with the project's own classes and resources."""
    classes = folder / "classes"
    classes.mkdir()
    resources = project / "src" / "main" / "resources"
    if resources.is_dir():
        shutil.copytree(resources, classes, dirs_exist_ok=True)
    sources = sorted(str(path) for path in (project / "src").rglob("*.java"))
    if not sources:
        return
    report(f"{name}: compiling {len(sources)} Java files")
    jars = ":".join(str(folder / "lib" / jar) for jar in _names(folder))
    # -proc:none: don't run annotation processors that old jars contain.
    options = ["-nowarn", "-proc:none", "--release", "11", "-cp", jars, "-d", str(classes)]
    log = log_of(name)
    if run([program("javac", "default-jdk-headless"), *options, *sources], log) != 0:
        raise ServerMissing(f"its Java sources do not compile; see {log}")


def run(
    command: Sequence[str],
    log: Path,
    progress: Report = lambda _: None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command with its output in a log file, report progress every 5 seconds, and return its exit code."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    began = time.monotonic()
    while True:
        try:
            return child.wait(_PROGRESS_S)
        except subprocess.TimeoutExpired:
            progress(f"{time.monotonic() - began:.0f} s")
        except BaseException:
            child.kill()
            child.wait()
            raise


def log_of(name: str) -> Path:
    """Return the log file of a server's downloads and builds."""
    return cache_folder.cache_folder() / f"{name}.log"


def _names(folder: Path) -> list[str]:
    return (folder / "classpath").read_text().split()


def _jars(folder: Path) -> tuple[int, int]:
    jars = list((folder / "lib").iterdir())
    return len(jars), sum(jar.stat().st_size for jar in jars)


def check_maven(name: str) -> None:
    """Check that ``fetch_maven`` has run. Raises ServerMissing."""
    jvm.java()
    jvm.installed(name)


RECIPES: Final[Mapping[str, Recipe]] = {
    "hbase": Recipe(_fetch_hbase, check_maven),
}
"""The server that a cluster on one machine needs."""


def fetch_all(recipes: Mapping[str, Recipe]) -> list[str]:
    """Fetch servers; return those that are missing, each told in a line that begins with MISSING."""
    say(f"servers are kept in {cache_folder.cache_folder()}")
    missing = []
    for name, recipe in recipes.items():
        try:
            fetch(name, recipe, say)
        except ServerMissing as error:
            missing.append(name)
            say(f"MISSING {name}: {error}")
    return missing


def say(line: str) -> None:
    """Write a line of progress."""
    sys.stdout.write(escaped_lines(line) + "\n")
    sys.stdout.flush()
