"""The scenarios: functions of a script, which sends the same requests to both servers.

Each scenario has its own namespace, named like the function.
"""

from collections.abc import Callable, Mapping

from tests.conformance.scenarios import consuming, garbled, http, paging, publishing, topics
from tests.conformance.script import Script

Scenario = Callable[[Script], None]


def _scenarios() -> Mapping[str, Scenario]:
    found: dict[str, Scenario] = {}
    for module in (topics, http, publishing, consuming, paging, garbled):
        for scenario in module.SCENARIOS:
            assert scenario.__name__ not in found, scenario.__name__
            found[scenario.__name__] = scenario
    return found


SCENARIOS = _scenarios()
