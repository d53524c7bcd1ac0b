"""The settings of a job's Spark session."""

from broker.streams.spark_session import settings_of


def test_on_this_machine_no_port_is_open_to_others() -> None:
    found = settings_of("local[*]", 3, {})
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.sql.shuffle.partitions"] == "3"


def test_on_other_machines_sparks_own_defaults_stay() -> None:
    assert "spark.driver.host" not in settings_of("yarn", 3, {})


def test_settings_that_are_given_come_first() -> None:
    found = settings_of("local[*]", 3, {"spark.sql.shuffle.partitions": "8"})
    assert found["spark.sql.shuffle.partitions"] == "8"
