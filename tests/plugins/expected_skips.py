"""Fail a run with CI=true for each skip and expected failure that is not in a list: a skipped test checks nothing.

``tests/expected_skips.toml`` (the ini value ``expected_skips``) lists them::

    [[expected]]
    test = "tests/integration/test_x.py::test_y"    # a node id, or the part of node ids before :: or [
    reason = "why the run needs no such test"

Outside CI a missing server skips its tests. In CI the run fails with the list of unexpected skips.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

INI = "expected_skips"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini value."""
    parser.addini(INI, "File that lists expected skips.", default="tests/expected_skips.toml")


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector of skips."""
    file = config.rootpath / str(config.getini(INI))
    enforced = os.environ.get("CI") == "true"
    config.pluginmanager.register(ExpectedSkips(read(file), enforced=enforced), "expected-skips")


def read(file: Path) -> dict[str, str]:
    """Return reasons by node id. Raises UsageError for an entry without a reason."""
    entries = tomllib.loads(file.read_text()).get("expected", []) if file.exists() else []
    for entry in entries:
        if set(entry) != {"test", "reason"} or not entry["reason"].strip():
            raise pytest.UsageError(f"{file}: an entry has a test and a reason, not {entry}")
    return {entry["test"]: entry["reason"] for entry in entries}


class ExpectedSkips:
    """Collects skips, and fails the run for an unexpected one."""

    def __init__(self, expected: dict[str, str], *, enforced: bool) -> None:
        """Keep the reasons by node id."""
        self._expected = expected
        self._enforced = enforced
        self._unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the skip of a test."""
        if report.skipped:
            kind = "expected failure" if hasattr(report, "wasxfail") else "skip"
            self._note(kind, report.nodeid, getattr(report, "wasxfail", "") or _reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record the skip of a whole module."""
        if report.skipped:
            self._note("skip", report.nodeid, _reason(report))

    def _note(self, kind: str, nodeid: str, reason: str) -> None:
        if not any(_covers(test, nodeid) for test in self._expected):
            self._unexpected.append(f"{kind}: {nodeid}: {reason}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a successful run if it has an unexpected skip."""
        if self._enforced and self._unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the unexpected skips."""
        if self._enforced and self._unexpected:
            terminalreporter.section("not in the list of expected skips", red=True)
            for line in self._unexpected:
                terminalreporter.line(line)


def _covers(test: str, nodeid: str) -> bool:
    return nodeid == test or nodeid.startswith((f"{test}::", f"{test}["))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
