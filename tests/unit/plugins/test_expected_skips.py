from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PLUGIN = "tests.plugins.expected_skips"
SKIPPING = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_needs_a_server(n):
    pytest.skip("no server")

def test_passes():
    pass
"""
LISTED = '[[expected]]\ntest = "{test}"\nreason = "nothing is lost"\n'


def run(pytester: pytest.Pytester, source: str, listed: str = "") -> pytest.RunResult:
    pytester.makepyfile(test_it=source)
    if listed:
        Path("tests").mkdir(exist_ok=True)
        Path("tests/expected_skips.toml").write_text(listed)
    return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:asyncio")


@pytest.fixture
def in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")


@pytest.mark.usefixtures("in_ci")
def test_an_unlisted_skip_fails_the_run_and_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, SKIPPING)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skip: test_it.py::test_needs_a_server*1*: Skipped: no server"])
    result.assert_outcomes(passed=1, skipped=2)


def test_outside_ci_a_skip_is_accepted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert run(pytester, SKIPPING).ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("in_ci")
@pytest.mark.parametrize("test", ["test_it.py", "test_it.py::test_needs_a_server"])
def test_a_listed_skip_is_accepted(pytester: pytest.Pytester, test: str) -> None:
    assert run(pytester, SKIPPING, LISTED.format(test=test)).ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("in_ci")
@pytest.mark.parametrize("test", ["test_it.py::test_needs", "test_it.py::test_needs_a_server[1]"])
def test_an_entry_covers_only_the_test_that_it_names(pytester: pytest.Pytester, test: str) -> None:
    assert run(pytester, SKIPPING, LISTED.format(test=test)).ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.usefixtures("in_ci")
def test_an_expected_failure_must_be_listed(pytester: pytest.Pytester) -> None:
    source = "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_x():\n    assert False\n"
    result = run(pytester, source)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["expected failure: test_it.py::test_x: known"])


@pytest.mark.usefixtures("in_ci")
def test_a_module_that_skips_as_a_whole_must_be_listed(pytester: pytest.Pytester) -> None:
    source = "import pytest\npytest.skip('no luck', allow_module_level=True)\n"
    source_beside = pytester.makepyfile(test_other="def test_passes():\n    pass\n")
    assert source_beside.exists()
    result = run(pytester, source)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skip: test_it.py: Skipped: no luck"])


@pytest.mark.usefixtures("in_ci")
def test_an_entry_without_a_reason_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, SKIPPING, '[[expected]]\ntest = "test_it.py"\nreason = " "\n')
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.usefixtures("in_ci")
def test_a_failure_stays_a_failure(pytester: pytest.Pytester) -> None:
    result = run(pytester, SKIPPING + "\ndef test_fails():\n    assert False\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, skipped=2, failed=1)
