"""The recipes of servers for tests and benchmarks only. ``ALL`` has the recipes of clusters, too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker.local.servers import cache_folder, downloads
from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.downloads import Recipe, Report, check_maven, fetch_maven, log_of, run
from broker.local.servers.process import program
from chaos import toxiproxy_server
from tests.kit.servers import compose, postgresql, quick_spark

_TOXIPROXY = "github.com/Shopify/toxiproxy/v2"
_COMPOSE = "github.com/docker/compose/v2"
PYSPARK: Final = "4.2.1"
"""The oldest supported version."""


MAVEN: Final = Recipe(fetch_maven, check_maven)


def _fetch_toxiproxy(name: str, report: Report) -> None:
    target = cache_folder.place(name, toxiproxy_server.VERSION)
    if target.is_dir():
        report(f"{name}: cached")
        return
    go = program("go", "golang-go")
    report(f"{name}: building with Go")
    flags = f"-s -w -X {_TOXIPROXY}.Version={toxiproxy_server.VERSION}"
    module = f"{_TOXIPROXY}/cmd/server@v{toxiproxy_server.VERSION}"

    def make(folder: Path) -> None:
        command = [go, "install", "-ldflags", flags, module]
        log = log_of(name)
        if run(command, log, environment={**os.environ, "GOBIN": str(folder)}) != 0:
            raise ServerMissing(f"Go could not fetch or build it; see {log}")

    cache_folder.build(target, make)
    report(f"{name}: {(target / 'server').stat().st_size >> 20} MB")


def _check_toxiproxy(name: str) -> None:
    toxiproxy_server.binary()


def _fetch_compose(name: str, report: Report) -> None:
    """Build docker-compose from a copy of its source: ``go install`` refuses this module."""
    target = cache_folder.place(name, compose.VERSION)
    if target.is_dir():
        report(f"{name}: cached")
        return
    go = program("go", "golang-go")
    report(f"{name}: building with Go (some minutes of CPU time, once)")
    log = log_of(name)

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
        built = run(
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
    log = log_of(name)

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        if run([*pip, "--target", str(folder), f"pyspark=={PYSPARK}"], log) != 0:
            raise ServerMissing(f"pip could not install it; see {log}")

    cache_folder.build(target, make)
    report(f"{name}: installed")


def _of_debian(package: str, check: Callable[[str], None]) -> Recipe:
    """Return the recipe of a server that Debian's package installs."""

    def fetch(name: str, report: Report) -> None:
        try:
            check(name)
        except ServerMissing:
            _install(name, package, report)
        report(f"{name}: installed")

    return Recipe(fetch, check)


def _install(name: str, package: str, report: Report) -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise ServerMissing(f"{name} is not installed: apt-get install {package}")
    report(f"{name}: installing Debian's {package}")
    # Run level 1: apt installs the package's service, but does not start it.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    log = log_of(name)
    install = [apt, "install", "--yes", "--no-install-recommends", package]
    if run(install, log, environment=environment) != 0 and (
        run([apt, "update"], log) != 0 or run(install, log, environment=environment) != 0
    ):
        raise ServerMissing(f"apt-get install {package} failed; see {log}")


def _check_compose(name: str) -> None:
    compose.binary()


def _check_pyspark(name: str) -> None:
    if not cache_folder.place(name, PYSPARK).is_dir():
        raise ServerMissing(f"{name} was not fetched")


def _check_redis(name: str) -> None:
    program("redis-server", "redis-server")


def _check_postgresql(name: str) -> None:
    postgresql.binary("postgres")


ALL: Final[Mapping[str, Recipe]] = {
    **downloads.RECIPES,
    "toxiproxy": Recipe(_fetch_toxiproxy, _check_toxiproxy),
    "tms": MAVEN,
    "tephra": MAVEN,
    "kafka": MAVEN,
    "spark-kafka": MAVEN,
    "spark": Recipe(quick_spark.make, quick_spark.check),
    "pyspark": Recipe(_fetch_pyspark, _check_pyspark),
    "redis": _of_debian("redis-server", _check_redis),
    "postgresql": _of_debian("postgresql", _check_postgresql),
    "compose": Recipe(_fetch_compose, _check_compose),
}
