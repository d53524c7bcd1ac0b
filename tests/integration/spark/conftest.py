"""One Spark and one broker for all tests here: each test takes topics and folders of its own."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.client import SyncClient
from broker.testing.process import BrokerProcess

NUMBERS = itertools.count()


def spark_session(folder: Path, master: str = "local[2]", **settings: str) -> SparkSession:
    """Start Spark in this process, with all that it leaves behind in a folder."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    given = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -Dderby.system.home={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "FATAL",
        "spark.sql.session.timeZone": "UTC",
        **settings,
    }
    builder = SparkSession.builder.master(master).appName("tests")
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[SyncClient]:
    with SyncClient(broker.url) as client:
        yield client


@pytest.fixture
def topic(client: SyncClient) -> str:
    """A new topic."""
    name = f"spark/t{next(NUMBERS)}"
    client.create_topic(name)
    return name
