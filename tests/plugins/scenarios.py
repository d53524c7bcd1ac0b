"""``--rewrite-scenarios``: scenarios of the cluster are written anew with what they print now."""

import pytest

OPTION = "--rewrite-scenarios"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addoption(OPTION, action="store_true", help="write what scenarios print into them")


@pytest.fixture
def rewrites_scenarios(request: pytest.FixtureRequest) -> bool:
    """Whether this run writes scenarios anew."""
    return bool(request.config.getoption(OPTION))
