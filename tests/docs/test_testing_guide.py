"""The example test in the testing guide passes, and fails for an application with an error."""

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/testing.md"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


def run(source: str) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, str(GUIDE), "exec"), names)
    names["test_that_every_order_is_copied_once"]()


def test_the_example_passes() -> None:
    run(example())


def test_the_example_fails_for_an_application_that_misses_a_message() -> None:
    with pytest.raises(AssertionError):
        run(example().replace("copied = 0", "copied = 1"))
