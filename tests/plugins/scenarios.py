"""``--rewrite-scenarios``: write the present output of the cluster's scenarios into their files."""

import pytest

OPTION = "--rewrite-scenarios"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addoption(
        OPTION, action="store_true", help="write the output of scenarios into their files"
    )


@pytest.fixture
def rewrites_scenarios(request: pytest.FixtureRequest) -> bool:
    """True if this run rewrites scenarios."""
    return bool(request.config.getoption(OPTION))
