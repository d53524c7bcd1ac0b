"""Spark finds the format ``tms`` by this module: it looks for modules whose names begin with ``pyspark_``.

An error in the import of such a module would hide every Python source of the installation. So this module reports a
missing package only when a query uses the format.
"""

from __future__ import annotations

from collections.abc import MutableMapping

try:
    from broker.spark.datasource import TmsDataSource as DefaultSource
except ImportError as error:
    from pyspark.sql.datasource import DataSource

    _MISSING = str(error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """The format on a machine that lacks a needed package."""

        @classmethod
        def name(cls) -> str:  # type: ignore[explicit-override]  # From a package that may be missing.
            """Return the name of the format."""
            return "tms"

        def __init__(self, options: MutableMapping[str, str]) -> None:
            """Raise ImportError, which names the package to install."""
            raise ImportError(
                f"The format tms can't be used here: {_MISSING}. "
                "Install it on the driver and on all executors: pip install 'tms-broker[spark]'"
            )


__all__ = ["DefaultSource"]
