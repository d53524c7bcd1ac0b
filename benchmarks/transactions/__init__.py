"""Measure short transactions per second, and the time from a commit until a consumer has its message."""
