"""Stands before the product's module of that name: the format tms, whose sinks report their steps to a gate."""

from tests.integration.spark.mortal import MortalSource as DefaultSource

__all__ = ["DefaultSource"]
