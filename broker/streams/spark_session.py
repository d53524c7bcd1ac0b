"""Start Spark for a job, in the job's own process.

The job and Spark's workers can import modules of the folder in which the process was started. So both find the same
classes by the same names.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker.errors import TaskFailed
from broker.streams.causes import cause_of

LOCAL: Final = "local"
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",  # This process itself reports why a job died.
}


Session = SparkSession


class SparkFailed(TaskFailed):
    """Spark refused a request, or a query died; the text is Spark's message, shortened."""


def settings_of(master: str, cores: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings; a setting in ``given`` replaces the default.

    A local Spark uses as many partitions as the machine has cores, and opens no port to other machines.
    """
    own = dict(SETTINGS)
    if master.startswith(LOCAL):
        own["spark.driver.host"] = own["spark.driver.bindAddress"] = "127.0.0.1"
        own["spark.sql.shuffle.partitions"] = str(cores)
    return {**own, **given}


def has_java() -> bool:
    """Return whether this machine has a Java for Spark."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin")) if home else None) is not None


def spark_session(name: str, master: str, conf: Mapping[str, str], folder: Path) -> Session:
    """Start Spark in this process; its workers can import modules of ``folder``."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if master.startswith(LOCAL):  # On other machines this interpreter may have another path.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName(name)
    for setting, value in settings_of(master, os.cpu_count() or 1, conf).items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


@contextmanager
def told_short() -> Iterator[None]:
    """Turn errors of Spark, and of the connection to it, into SparkFailed."""
    try:
        yield
    except PySparkException as error:
        raise SparkFailed(cause_of(str(error))) from error
    except Exception as error:
        if not (isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j.")):
            raise
        raise SparkFailed(
            f"Spark's process can't be reached, it may have ended ({type(error).__name__}: {error}). Perhaps it was "
            "killed, or had too little memory: see its log, or give it more by spark.driver.memory."
        ) from error
