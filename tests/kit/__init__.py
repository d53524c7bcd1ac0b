"""Helpers for this project's own tests only: programs that tests start, shared suites, and simulated nodes."""
