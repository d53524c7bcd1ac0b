"""Scenarios of the cluster as text: a file reads as a story (docs/internals/simulation.md)."""
