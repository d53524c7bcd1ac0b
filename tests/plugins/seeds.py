"""The seed of a run of the tests: another one each day, the same in every process, and printed.

Fixed seeds find once what they can find. A seed that is drawn anew each day looks elsewhere every day, and
all runs of one day look at the same. ``TEST_SEED=20261123`` looks again where a failed run looked.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "TEST_SEED"
APART = 1000
"""Between the seeds of two days, so that their ranges do not overlap."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed; workers, which start later, inherit it. Hypothesis draws its examples from it, too."""
    os.environ.setdefault(VARIABLE, time.strftime("%Y%m%d", time.gmtime()))
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(day())


def pytest_report_header() -> str:
    """Print the seed at the start of a run."""
    return f"seeds: {VARIABLE}={day()} draws the same again"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed beside the failures, too."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(pytest_report_header())


def day() -> int:
    """Return the number that this run draws from."""
    return int(os.environ[VARIABLE])


def first_seed() -> int:
    """Return the first of the seeds of this run; a test takes as many as it wants from there on."""
    return day() * APART


@pytest.fixture
def drawn_seed() -> int:
    """The first of the seeds of this run; a test takes as many as it wants from there on."""
    return first_seed()
