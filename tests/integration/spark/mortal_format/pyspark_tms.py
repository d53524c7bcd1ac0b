"""Replaces the product's module of this name: the format tms with sinks that report their steps to a gate."""

from tests.integration.spark.mortal import MortalSource as DefaultSource

__all__ = ["DefaultSource"]
