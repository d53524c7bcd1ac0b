"""Fetch servers into the cache with Maven, Go, pip and apt, as each server needs.

Every recipe is idempotent, and needs no network after its result is cached. If a recipe fails, its error names the
missing part in one line. Maven runs offline first: if its own store has all files, that takes seconds and no
registry.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.local.servers import archive, cache_folder, compose, jvm, toxiproxy
from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.hbase import HBaseServer
from broker.local.servers.process import ServerFailed, program

Report = Callable[[str], None]

_MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_COMPOSE = "github.com/docker/compose/v2"
_TOXIPROXY = "github.com/Shopify/toxiproxy/v2"
_PROGRESS_S = 5.0
PYSPARK: Final = "4.2.1"
"""The oldest supported version."""


def fetch(name: str, report: Report) -> None:
    """Fetch the server ``name``, unless it is in the cache.

    Args:
        name: A key of ``RECIPES``.
        report: Gets progress lines.

    Raises:
        ServerMissing: It can't be fetched; the message names the missing part.
    """
    with cache_folder.locked():
        RECIPES[name].fetch(name, report)


def check(name: str) -> None:
    """Check that the server ``name`` can be started, without fetching it.

    Raises:
        ServerMissing: It can't be started; the message has advice.
    """
    RECIPES[name].check(name)


def _fetch_maven(name: str, report: Report) -> None:
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
    _fetch_maven(name, report)
    target = archive.target()
    if target.is_dir():
        return
    report(f"{name}: starting it once, to make the archive of its classes")

    def make(folder: Path) -> None:
        archive.pack_own()
        with HBaseServer(jvm_options=(*jvm.QUICK, "-Xmx768m", archive.RECORDING)) as server:
            archive.write(server, folder)

    began = time.monotonic()
    try:
        cache_folder.build(target, make)
        report(f"{name}: made the archive, {time.monotonic() - began:.0f} s")
    except (ServerFailed, subprocess.SubprocessError) as error:
        report(f"{name}: there is no archive, so each start takes longer: {error}")


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
    log = _log_of(name)
    if _run([*command, "--offline"], log) != 0:
        report(f"{name}: fetching with Maven (50 to 110 MB, once)")
        if _run(command, log, lambda line: report(f"{name}: {line}")) != 0:
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
    log = _log_of(name)
    if _run([program("javac", "default-jdk-headless"), *options, *sources], log) != 0:
        raise ServerMissing(f"its Java sources do not compile; see {log}")


def _fetch_toxiproxy(name: str, report: Report) -> None:
    target = cache_folder.place(name, toxiproxy.VERSION)
    if target.is_dir():
        report(f"{name}: cached")
        return
    go = program("go", "golang-go")
    report(f"{name}: building with Go")
    flags = f"-s -w -X {_TOXIPROXY}.Version={toxiproxy.VERSION}"
    module = f"{_TOXIPROXY}/cmd/server@v{toxiproxy.VERSION}"

    def make(folder: Path) -> None:
        command = [go, "install", "-ldflags", flags, module]
        log = _log_of(name)
        if _run(command, log, environment={**os.environ, "GOBIN": str(folder)}) != 0:
            raise ServerMissing(f"Go could not fetch or build it; see {log}")

    cache_folder.build(target, make)
    report(f"{name}: {(target / 'server').stat().st_size >> 20} MB")


def _fetch_compose(name: str, report: Report) -> None:
    """Build docker-compose from a copy of its source: ``go install`` refuses this module."""
    target = cache_folder.place(name, compose.VERSION)
    if target.is_dir():
        report(f"{name}: cached")
        return
    go = program("go", "golang-go")
    report(f"{name}: building with Go (some minutes of CPU time, once)")
    log = _log_of(name)

    def make(folder: Path) -> None:
        module = f"{_COMPOSE}@v{compose.VERSION}"
        downloaded = _output([go, "mod", "download", "-json", module], log)
        source = folder / "source"
        # Go's own copy of the source is read-only, and a build must not write there.
        shutil.copytree(json.loads(downloaded)["Dir"], source, copy_function=shutil.copyfile)
        for directory in (source, *(path for path in source.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        command = [go, f"-C={source}", "build", "-trimpath", "-ldflags", "-s -w"]
        environment = {**os.environ, "GOFLAGS": "-buildvcs=false"}
        built = _run(
            [*command, "-o", str(folder / "docker-compose"), "./cmd"],
            log,
            lambda line: report(f"{name}: {line}"),
            environment=environment,
        )
        if built != 0:
            raise ServerMissing(f"Go could not build it; see {log}")
        shutil.rmtree(source)

    cache_folder.build(target, make)
    report(f"{name}: {(target / 'docker-compose').stat().st_size >> 20} MB")


def _output(command: Sequence[str], log: Path) -> str:
    with log.open("ab") as errors:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, check=False
        )
    if done.returncode != 0:
        raise ServerMissing(f"{' '.join(command[:3])} failed (is there a network?); see {log}")
    return done.stdout.decode()


def _fetch_pyspark(name: str, report: Report) -> None:
    """Put an older PySpark into a folder for PYTHONPATH: an environment can have only one version."""
    target = cache_folder.place(name, PYSPARK)
    if target.is_dir():
        report(f"{name}: cached")
        return
    report(f"{name}: installing PySpark {PYSPARK} (about 450 MB, once)")
    log = _log_of(name)

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        if _run([*pip, "--target", str(folder), f"pyspark=={PYSPARK}"], log) != 0:
            raise ServerMissing(f"pip could not install it; see {log}")

    cache_folder.build(target, make)
    report(f"{name}: installed")


def _fetch_redis(name: str, report: Report) -> None:
    if shutil.which("redis-server"):
        report(f"{name}: installed")
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise ServerMissing("redis-server is not installed: apt-get install redis-server")
    report(f"{name}: installing Debian's redis-server")
    # Run level 1: apt installs the package's service, but does not start it.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    log = _log_of(name)
    install = [apt, "install", "--yes", "--no-install-recommends", "redis-server"]
    if _run(install, log, environment=environment) != 0 and (
        _run([apt, "update"], log) != 0 or _run(install, log, environment=environment) != 0
    ):
        raise ServerMissing(f"apt-get install redis-server failed; see {log}")
    report(f"{name}: installed")


def _run(
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


def _log_of(name: str) -> Path:
    return cache_folder.cache_folder() / f"{name}.log"


def _names(folder: Path) -> list[str]:
    return (folder / "classpath").read_text().split()


def _jars(folder: Path) -> tuple[int, int]:
    jars = list((folder / "lib").iterdir())
    return len(jars), sum(jar.stat().st_size for jar in jars)


def _check_maven(name: str) -> None:
    jvm.java()
    jvm.installed(name)


def _check_toxiproxy(name: str) -> None:
    toxiproxy.binary()


def _check_compose(name: str) -> None:
    compose.binary()


def _check_pyspark(name: str) -> None:
    if not cache_folder.place(name, PYSPARK).is_dir():
        raise ServerMissing(f"{name} was not fetched")


def _check_redis(name: str) -> None:
    program("redis-server", "redis-server")


class Recipe(NamedTuple):
    """The functions that fetch one server, and that check it; both raise ServerMissing."""

    fetch: Callable[[str, Report], None]
    check: Callable[[str], None]


_MAVEN = Recipe(_fetch_maven, _check_maven)

RECIPES: Mapping[str, Recipe] = {
    "tms": _MAVEN,
    "tephra": _MAVEN,
    "hbase": Recipe(_fetch_hbase, _check_maven),
    "kafka": _MAVEN,
    "spark-kafka": _MAVEN,
    "pyspark": Recipe(_fetch_pyspark, _check_pyspark),
    "redis": Recipe(_fetch_redis, _check_redis),
    "toxiproxy": Recipe(_fetch_toxiproxy, _check_toxiproxy),
    "compose": Recipe(_fetch_compose, _check_compose),
}
