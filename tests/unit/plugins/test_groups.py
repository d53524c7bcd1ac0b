import os
from pathlib import Path

import pytest

from tests.plugins.groups import group_of, niceness_of, place_of

pytestmark = pytest.mark.slow

PLUGIN = "tests.plugins.groups"
PRINTING = """
import os

def test_where():
    print("ran", __name__, os.environ["PYTEST_XDIST_WORKER"], os.nice(0))
    assert "COLUMNS" not in os.environ
    assert False
"""
FILES = (
    "tests/docs/test_in_docs.py",
    "tests/integration/test_cluster_one.py",
    "tests/integration/test_hbase_other.py",
    "tests/tidy/test_in_tidy.py",
    "tests/unit/test_in_unit.py",
)
FLAGS = (
    "--import-mode=importlib",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:asyncio",
    "-p",
    "no:schemathesis",
    "-p",
    PLUGIN,
)


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/test_clock.py::test_it[a]", "tests/unit/test_clock.py"),
        ("tests/chaos/test_cases.py::TestOnACluster::test_it", "cluster"),
        ("tests/chaos/test_cases.py::test_it", "tests/chaos/test_cases.py"),
        ("tests/integration/test_cluster_faults.py::test_it", "cluster"),
        ("tests/integration/test_stop.py::test_it", "tests/integration/test_stop.py"),
        ("tests/conformance/test_mutations.py::test_it", "original"),
        ("tests/integration/spark/test_sink.py::test_it", "spark"),
        ("tests/integration/attacks/test_heads.py::test_it", "attacks"),
    ],
)
def test_tests_that_share_servers_are_in_one_group(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_the_longest_group_is_first_and_the_computing_groups_are_last() -> None:
    attack = "tests/integration/attacks/test_heads.py::test_it"
    nodeids = [attack, *(f"{file}::test_where" for file in FILES)]
    assert sorted(nodeids, key=place_of) == [nodeids[place] for place in (3, 2, 1, 0, 4, 5)]


def test_groups_run_in_parallel_and_yield_to_a_cluster(pytester: pytest.Pytester) -> None:
    for name in FILES:
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PRINTING)
    result = pytester.runpytest_subprocess("-n2", *FLAGS)
    result.assert_outcomes(failed=len(FILES))
    ran = {line.split()[1]: line.split()[2:] for line in result.outlines if "ran " in line[:4]}
    assert len(ran) == len(FILES)
    by_file = {file: ran[file.removesuffix(".py").replace("/", ".")] for file in FILES}
    assert by_file[FILES[1]][0] == by_file[FILES[2]][0], "the cluster's tests have one worker"
    assert len({worker for worker, _ in by_file.values()}) == 2
    # This test may be in a group itself.
    assert {file: int(nice) for file, (_, nice) in by_file.items()} == {
        file: max(os.nice(0), niceness_of(file)) for file in FILES
    }


def test_a_test_that_would_start_a_second_hbase_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\n@pytest.fixture(scope='session')\ndef shared_hbase():\n    pass\n"
    )
    file = Path("tests/integration/test_stray.py")
    file.parent.mkdir(parents=True)
    file.write_text("def test_it(shared_hbase):\n    pass\n")
    result = pytester.runpytest_subprocess(*FLAGS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_stray.py::test_it belongs into the group 'cluster'*"])
