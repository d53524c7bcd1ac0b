import re
import time

import pytest

from tests.plugins.seeds import APART, VARIABLE, first_seed

pytestmark = pytest.mark.slow

PLUGIN = "tests.plugins.seeds"
PRINTING = """
def test_it(drawn_seed):
    print("drawn", drawn_seed)
    assert False
"""


def run(pytester: pytest.Pytester, *flags: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=PRINTING)
    return pytester.runpytest_subprocess(
        "-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:schemathesis", *flags
    )


def test_the_seed_is_the_date_and_is_printed_at_the_start_and_at_the_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    before, result, after = time.gmtime(), run(pytester), time.gmtime()
    days = {time.strftime("%Y%m%d", moment) for moment in (before, after)}
    lines = [line for line in result.outlines if line.startswith(f"seeds: {VARIABLE}=")]
    assert len(lines) == 2
    seeds = re.findall(r"\d{8}", lines[0])
    assert set(seeds) <= days


def test_a_worker_draws_from_the_given_seed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "20200203")
    assert first_seed() == 20_200_203 * APART
    result = run(pytester, "-n1")
    result.stdout.fnmatch_lines([f"*seeds: {VARIABLE}=20200203*", f"drawn {first_seed()}"])
