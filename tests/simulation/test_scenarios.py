"""The stories in ``scenarios/``, each a file with commands and their output (docs/internals/simulation.md)."""

from pathlib import Path

import pytest

from tests.kit.scenarios import client_commands, fault_commands
from tests.kit.scenarios.interpreter import run
from tests.kit.scenarios.script import compared, parse, written

FOLDER = Path(__file__).parent / "scenarios"
STORIES = sorted(FOLDER.glob("*.txt"))
assert client_commands, fault_commands  # Their import registers the commands.


@pytest.mark.simulation
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_a_scenario_prints_the_expected_lines(story: Path, rewrites_scenarios: bool) -> None:
    text = story.read_text()
    printed = written(run(parse(text)))
    if rewrites_scenarios:
        story.write_text(printed)
        return
    if printed != text:
        pytest.fail(f"{story.name}\n{compared(text.splitlines(), printed.splitlines())}")
