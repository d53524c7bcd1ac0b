import os
from pathlib import Path

import pytest

from tests.plugins.lanes import NICENESS, lane_of

PLUGIN = "tests.plugins.lanes"
TELLING = """
import os

def test_where():
    print("worker", os.environ["PYTEST_XDIST_WORKER"], "nice", os.nice(0))
    assert "COLUMNS" not in os.environ
    assert False
"""


@pytest.mark.parametrize(
    ("nodeid", "lane"),
    [
        ("tests/unit/test_clock.py::test_it[a]", "computing"),
        ("tests/simulation/test_seeds.py::TestIt::test_it", "computing"),
        ("tests/integration/test_unit.py::test_it", "servers"),
        ("tests/docs/test_commands.py::test_it[make demo]", "servers"),
    ],
)
def test_what_starts_servers_is_in_a_lane_of_its_own(nodeid: str, lane: str) -> None:
    assert lane_of(nodeid) == lane


def test_lanes_run_side_by_side_and_the_computing_one_stands_back(
    pytester: pytest.Pytester,
) -> None:
    for folder in ("unit", "tidy", "chaos", "contract"):
        path = Path("tests", folder)
        path.mkdir(parents=True)
        (path / f"test_in_{folder}.py").write_text(TELLING)
    flags = ("--import-mode=importlib", "-n2", "-p", "no:cacheprovider", "-p", "no:asyncio")
    result = pytester.runpytest_subprocess("-p", PLUGIN, *flags)
    told = sorted(line for line in result.outlines if line.startswith("worker"))
    by_worker = [told[0], told[0], told[2], told[2]]
    assert told == by_worker
    niceness = sorted(line.split()[-1] for line in (told[0], told[2]))
    assert niceness == sorted(
        [str(os.nice(0)), str(NICENESS)]
    )  # This test may be in a lane itself.
    result.assert_outcomes(failed=4)
