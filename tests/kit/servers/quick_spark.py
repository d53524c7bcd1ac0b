"""A Spark for tests that starts in half the time.

A start of Spark reads some ten thousand classes, and each of Spark's Python processes compiles PySpark out of a zip. So
the tests' Spark has a home of its own in the virtual environment::

    .venv/spark-home/
      jars, bin, sbin    links to those of the installed package
      classes.jsa        an archive of the classes (class data sharing), which the JVM maps into memory
      key                the versions that the archive fits

There is no ``python/lib/pyspark.zip`` in it, so that Python reads the installed package, which is compiled. The home lies
in the environment, because an archive fits only the jars of one folder. Without it all works as well, but slower.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from broker.local.servers import jvm
from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.downloads import Report, log_of, run

HOME: Final = Path(sys.prefix) / "spark-home"
_ARCHIVE: Final = HOME / "classes.jsa"
_KEY: Final = HOME / "key"
_LINKED: Final = ("jars", "bin", "sbin")
_WARM_UP: Final = "tests.kit.servers.spark_warm_up"


def java_options() -> tuple[str, ...]:
    """Return the options of the tests' JVMs of Spark."""
    return (*jvm.QUICK, f"-XX:SharedArchiveFile={_ARCHIVE}") if _is_made() else jvm.QUICK


def environment() -> dict[str, str]:
    """Return the environment variables of processes that start Spark. The two last ones are for Spark's programs."""
    return {
        "SPARK_HOME": str(HOME if _is_made() else _package()),
        "SPARK_LAUNCHER_OPTS": " ".join(jvm.QUICK),
        "SPARK_DAEMON_JAVA_OPTS": " ".join(java_options()),
    }


def make(name: str, report: Report) -> None:
    """Make the home, unless there is one that fits. Raises ServerMissing."""
    if _is_made():
        report(f"{name}: cached")
        return
    report(f"{name}: starting Spark once, to make the archive of its classes")
    began = time.monotonic()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    for linked in _LINKED:
        (HOME / linked).symlink_to(_package() / linked)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", _WARM_UP, folder, str(_ARCHIVE)]
        failed = run(command, log_of(name), environment={**os.environ, "SPARK_HOME": str(HOME)})
    if failed or not _ARCHIVE.is_file():
        raise ServerMissing(f"Spark made no archive, so its tests take longer; see {log_of(name)}")
    _KEY.write_text(_key())
    report(f"{name}: made the archive, {time.monotonic() - began:.0f} s")


def check(name: str) -> None:
    """Raise ServerMissing if there is no home that fits."""
    if not _is_made():
        raise ServerMissing(f"{name} was not fetched")


def _is_made() -> bool:
    try:
        return _KEY.read_text() == _key()
    except (FileNotFoundError, ServerMissing):
        return False


def _key() -> str:
    """Return a text that changes with PySpark and Java."""
    java, jars = Path(jvm.java()).resolve(), _package() / "jars"
    return f"{jars} {jars.stat().st_mtime_ns} {java} {java.stat().st_mtime_ns}"


def _package() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerMissing("PySpark is not installed: make setup-dev")
    return Path(found.origin).parent
