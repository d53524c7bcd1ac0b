"""The programs in docs/ that use Spark run in the shared Spark. At night tests/docs runs each as its own process."""

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.testing.broker_process import BrokerProcess
from tests.kit.pages import at_port, named, spark_programs

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
CHECKPOINT = '"./word-count"'


@pytest.mark.parametrize(("page", "block"), spark_programs(), ids=named(spark_programs()))
@pytest.mark.usefixtures("spark")
def test_a_program_of_a_page_runs(
    page: str, block: str, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page != "docs/guides/streams.md" or CHECKPOINT in block
    program = tmp_path / "program.py"
    # Java's current folder is not that of the test.
    checkpoint = repr(str(tmp_path / "checkpoint"))
    program.write_text(at_port(block, broker.port).replace(CHECKPOINT, checkpoint))
    # The program gets the shared session, which other tests need after it.
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    runpy.run_path(str(program), run_name="__main__")
