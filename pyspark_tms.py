"""By this module Spark finds the format ``tms``: it looks for modules whose names begin with ``pyspark_``.

An error while such a module is imported would hide every Python source of the installation. So what is
missing is told when the format is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping

try:
    from broker.spark.datasource import TmsDataSource as DefaultSource
except ImportError as error:
    from pyspark.sql.datasource import DataSource

    _MISSING = str(error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """The format where something that it needs is not installed."""

        @classmethod
        def name(cls) -> str:  # type: ignore[explicit-override]  # From a package that may be missing.
            """Return the name of the format."""
            return "tms"

        def __init__(self, options: MutableMapping[str, str]) -> None:
            """Refuse. Raises ImportError with what to install."""
            raise ImportError(
                f"The format tms can't be used here: {_MISSING}. "
                "Install it on the driver and on all executors: pip install 'tms-broker[spark]'"
            )


__all__ = ["DefaultSource"]
