"""The module by which Spark finds the format."""

import runpy
import sys

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType, StructField, StructType

import pyspark_tms
from broker.spark import TmsDataSource

PATH = pyspark_tms.__file__
GIVEN = {"url": "http://a:1", "topic": "t"}


def test_the_format_is_found_by_its_name() -> None:
    assert pyspark_tms.DefaultSource is TmsDataSource
    assert TmsDataSource.name() == "tms"


def test_a_missing_package_is_named_when_the_format_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "broker.spark.datasource", None)
    found = runpy.run_path(PATH)["DefaultSource"]
    assert issubclass(found, DataSource)
    assert found.name() == "tms"
    with pytest.raises(ImportError, match=r"pip install 'tms-broker\[spark\]'"):
        found({})


def test_a_heart_beat_needs_columns_that_can_be_null() -> None:
    needed = StructType([StructField("value", BinaryType(), nullable=False)])
    assert TmsDataSource(GIVEN).streamReader(needed)
    beating = TmsDataSource({**GIVEN, "heartbeatInterval": "2s"})
    with pytest.raises(ValueError, match=r"value can't be NOT NULL.* Leave NOT NULL out"):
        beating.streamReader(needed)
    assert beating.streamReader(StructType([StructField("value", BinaryType())]))


def test_a_topic_is_never_overwritten_by_a_batch_and_gets_whole_results_of_a_stream() -> None:
    columns = StructType([StructField("value", BinaryType())])
    source = TmsDataSource(GIVEN)
    with pytest.raises(ValueError, match="never overwritten"):
        source.writer(columns, overwrite=True)
    assert source.writer(columns, overwrite=False)
    assert source.streamWriter(columns, overwrite=True)
