"""CONTRIBUTING.md shows how to add an operation. This adds it that way, and runs the test that the page shows."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import pytest

from broker.api import openapi, routes, topics_admin
from broker.operations import replies, table
from tests.kit import serving
from tests.tidy.sources import text

REPLY, ENTRY, HANDLER, TEST = re.findall(
    r"^```python\n(.*?)^```$", text("CONTRIBUTING.md"), re.MULTILINE | re.DOTALL
)


def defined(code: str, module: ModuleType) -> Any:
    names: dict[str, Any] = dict(vars(module))
    before = set(names)
    exec(code, names)
    *_, new = [value for name, value in names.items() if name not in before]
    return new


async def test_an_entry_and_a_handler_are_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "Age", reply := defined(REPLY, replies), raising=False)
    entry = eval(ENTRY, {**vars(table), "Age": reply})
    assert sum(len(code.splitlines()) for code in (REPLY, ENTRY, HANDLER, TEST)) <= 30
    monkeypatch.setitem(table.BY_NAME, entry.name, entry)
    for module in (routes, openapi):
        monkeypatch.setattr(module, "OPERATIONS", (*table.OPERATIONS, entry))
    monkeypatch.setattr(topics_admin, "Age", reply, raising=False)
    handler = defined(HANDLER, topics_admin)
    assert inspect.iscoroutinefunction(handler)
    monkeypatch.setattr(topics_admin.TopicsAdmin, entry.name, handler, raising=False)
    broker = serving.Broker()
    await broker.call("PUT", serving.topic_path("t"))
    await defined(TEST, serving)(broker)
    await broker.close()
