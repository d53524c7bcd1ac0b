"""Each guard of the client's transactions prevents one wrong end; without the guard it happens."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from broker.client import BrokerError, Client, Snapshot, Undoable
from broker.testing.mutants import in_force
from tests.unit.client.conftest import ScriptedTransport
from tests.unit.client.stand_in import Foreign, OverHttp, Topics

Make = Callable[..., Client]
Found = Coroutine[Any, Any, Any]


async def unknown_publish(make_client: Make, transport: ScriptedTransport) -> str:
    """Return the state of a transaction after a publish that is stored, and never acknowledged."""
    topics = Topics()
    topics.cut = ["after"]
    transport.answer = OverHttp(topics)
    async with make_client() as client:
        with suppress(BrokerError):
            async with client.transaction() as tx:
                await tx.publish("ns/a", b"0")
    return tx.state


async def unknown_commit(make_client: Make, transport: ScriptedTransport) -> list[bytes]:
    """Return the rollbacks of a committed transaction whose answer to the commit is lost."""
    topics = Topics()
    transport.answer = service = OverHttp(topics)
    service.cut["commit"] = ["after"]
    async with make_client() as client:
        with suppress(BrokerError):
            async with client.transaction() as tx:
                await tx.publish("ns/a", b"0")
    return topics.rolled_back


async def second_commit(make_client: Make, transport: ScriptedTransport) -> list[bytes]:
    """Return the rollbacks if the first commit arrives after the client has sent a second one."""
    topics, service = Topics(), Foreign()
    transport.answer = topics
    service.cut["commit"] = ["before"]
    seen = service.rules.snapshot

    def late() -> Any:
        told = seen()
        for pointer in list(service.rules.in_progress):
            service.rules.commit(pointer)
        return told

    service.rules.snapshot = late  # type: ignore[method-assign]
    async with make_client() as client:
        with suppress(BrokerError):
            async with client.transaction(service=service) as tx:
                await tx.publish("ns/a", b"0")
    return topics.rolled_back


async def unheard_pointer(make_client: Make, transport: ScriptedTransport) -> str:
    """Return the state of a transaction that its service has forgotten."""
    transport.answer = Topics()
    service = Foreign()
    service.cut["commit"] = ["before"]
    async with make_client() as client:
        with suppress(BrokerError):
            async with client.transaction(service=service) as tx:
                old = Snapshot(transaction_id=0, read_pointer=tx.id - 1)
                service.rules.snapshot = lambda: old  # type: ignore[method-assign]
    return tx.state


async def publisher_last(make_client: Make, transport: ScriptedTransport) -> int:
    """Return the number of publishes of a transaction in which a participant fails."""
    topics = Topics()
    transport.answer = OverHttp(topics)
    async with make_client() as client:
        failing = Undoable(lambda: False, lambda: True)
        with suppress(RuntimeError):
            async with client.transaction(aware=[failing]) as tx:
                await tx.publish("ns/a", b"0")
    return len(topics.published)


GUARDS: list[tuple[str, Callable[[Make, ScriptedTransport], Found], Any, Any]] = [
    ("unknown-publish", unknown_publish, "invalid", "aborted"),
    ("unknown-commit", unknown_commit, [], [b"range 1"]),
    ("second-commit", second_commit, [], [b"range 1"]),
    ("unheard-pointer", unheard_pointer, "unknown", "committed"),
    ("publisher-last", publisher_last, 0, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "story", "right", "wrong"), GUARDS, ids=[guard[0] for guard in GUARDS]
)
async def test_without_its_guard_the_story_ends_badly(
    make_client: Make,
    transport: ScriptedTransport,
    name: str,
    story: Callable[[Make, ScriptedTransport], Found],
    right: object,
    wrong: object,
) -> None:
    assert await story(make_client, transport) == right
    with in_force(name):
        assert await story(make_client, transport) == wrong
