"""The seed of a test run: it changes each day, is the same in every process, and is printed.

A fixed seed tests the same cases in each run. The seed of the day tests new cases every day, and all runs of one day
test the same cases. ``TEST_SEED=20261123`` repeats the cases of a failed run.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "TEST_SEED"
APART = 1000
"""The distance between the seeds of two days, so that their ranges do not overlap."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the seed. Workers start later and inherit it. Hypothesis uses it for its examples, too."""
    os.environ.setdefault(VARIABLE, time.strftime("%Y%m%d", time.gmtime()))
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(day())


def pytest_report_header() -> str:
    """Print the seed at the start of a run."""
    return f"seeds: {VARIABLE}={day()} repeats the same cases"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed beside the failures, too."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(pytest_report_header())


def day() -> int:
    """Return the seed of this run."""
    return int(os.environ[VARIABLE])


def first_seed() -> int:
    """Return the first seed of this run; a test uses as many consecutive seeds as it needs."""
    return day() * APART


@pytest.fixture
def drawn_seed() -> int:
    """The first seed of this run; a test uses as many consecutive seeds as it needs."""
    return first_seed()
