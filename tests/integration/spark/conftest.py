"""One Spark and one broker for all tests here; each test uses its own topics and folders."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.client import SyncClient
from broker.testing.broker_process import BrokerProcess
from tests.integration.spark.bed import Bed
from tests.integration.spark.mortal import Gate
from tests.integration.spark.sessions import spark_session

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def gate() -> Iterator[Gate]:
    with Gate() as gate:
        yield gate


@pytest.fixture(scope="session")
def spark(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark; its processes get the gate's port from their environment."""
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


@pytest.fixture
def bed(spark: SparkSession, client: SyncClient, broker: BrokerProcess, tmp_path: Path) -> Bed:
    return Bed(spark, client, broker.url, tmp_path)
