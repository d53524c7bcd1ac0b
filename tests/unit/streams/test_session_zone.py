"""A job reads texts without a time zone as UTC, whatever zone the user's Spark session has."""

from types import SimpleNamespace

from broker.streams.queries import _session


class Conf:
    """Settings of a session."""

    def __init__(self, **given: str) -> None:
        self.getAll = given

    def isModifiable(self, name: str) -> bool:  # noqa: N802 - Spark's name.
        return name != "spark.master"

    def set(self, name: str, value: str) -> None:
        self.getAll[name] = value


def test_the_session_of_a_job_is_in_utc() -> None:
    own = SimpleNamespace(conf=Conf())
    zone = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.master": "local", "a": "b"}
    spark = SimpleNamespace(conf=Conf(**zone), newSession=lambda: own)
    settings = _session(spark).conf.getAll  # type: ignore[arg-type]
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["a"] == "b"
    assert "spark.master" not in settings
