"""The guide's consumer counts each message once, although it dies before or after handling a message."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.client import SyncClient, TailOptions
from tests.kit.served import ServedNode

GUIDE = Path(__file__).parents[2] / "docs/guides/exactly-once.md"
TO_THE_END = TailOptions(follow=False)


@pytest.fixture(scope="module")
def client() -> Iterator[SyncClient]:
    with ServedNode() as node, SyncClient(node.url) as client:
        yield client


@pytest.fixture
def program() -> dict[str, Any]:
    """The namespace of the guide's first program."""
    block = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, str(GUIDE), "exec"), names)
    return names


@pytest.mark.parametrize("dies_at", range(4))
@pytest.mark.parametrize("has_handled", [False, True])
def test_each_payment_counts_once(
    program: dict[str, Any], client: SyncClient, dies_at: int, *, has_handled: bool
) -> None:
    topic = program["TOPIC"]
    client.create_topic(topic)
    client.publish(topic, [f'{{"account": "a", "amount": {n}}}' for n in (1, 10, 100, 1000)])
    handle, calls = program["handle"], iter(range(100))

    def dying(database: sqlite3.Connection, payload: bytes) -> None:
        dies = next(calls) == dies_at
        if has_handled or not dies:
            handle(database, payload)
        if dies:
            raise ZeroDivisionError

    program["handle"] = dying
    with closing(sqlite3.connect(":memory:")) as database:
        program["prepare"](database)
        with pytest.raises(ZeroDivisionError):
            program["consume"](client, database, TO_THE_END)
        program["consume"](client, database, TO_THE_END)
        assert database.execute("SELECT amount FROM balances").fetchall() == [(1111,)]
    client.delete_topic(topic)
