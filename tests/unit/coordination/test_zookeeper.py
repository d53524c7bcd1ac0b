"""Calls of kazoo while ZooKeeper does not answer, in virtual time, without a server or threads."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooState

from broker.coordination import zookeeper
from broker.coordination.ports import Contact
from broker.coordination.tree import Unanswered
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate, within
from tests.kit.contract.coordination import CallRecorder, reaches

SESSION_S = 4.0
SLOTS = [f"slot/{number}" for number in range(20)]


class FakeKazoo:
    """Answers at once while it ``serves``. It records the requests in ``asked``, with their times."""

    def __init__(self) -> None:
        self.client_id = (77, b"")
        self.hosts = [("dead", 2181), ("alive", 2181)]
        self.serves = True
        self.asked: list[tuple[float, str]] = []
        self._made: list[str] = []
        self._listeners: list[Callable[[str], None]] = []

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        self.report(KazooState.CONNECTED)

    def report(self, state: str) -> None:
        for listener in self._listeners:
            listener(state)

    def exists_async(self, _: str) -> Any:
        return self._answer("exists", None)

    def sync_async(self, path: str) -> Any:
        return self._answer("sync", path)

    def create_async(self, path: str, *_: object, **__: object) -> Any:
        made = f"{path}{len(self._made):010d}"
        if self.serves:
            self._made.append(made)
        return self._answer("create", (made, SimpleNamespace(ephemeralOwner=77)))

    def get_children_async(self, path: str, *_: object) -> Any:
        parents = [made.rpartition("/") for made in self._made]
        return self._answer("children", [name for parent, _, name in parents if parent == path])

    def _answer(self, request: str, value: object) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), request))
        result = SimpleNamespace(successful=lambda: True, value=value)
        return SimpleNamespace(rawlink=lambda done: done(result) if self.serves else None)

    def asked_since(self, moment: float) -> list[str]:
        return [request for at, request in self.asked if at > moment]


@pytest.fixture
def kazoo(monkeypatch: pytest.MonkeyPatch) -> FakeKazoo:
    kazoo = FakeKazoo()

    async def here(call: Callable[[], None]) -> None:
        call()

    monkeypatch.setattr(zookeeper, "KazooClient", lambda **_: kazoo)
    monkeypatch.setattr(zookeeper, "granted_ms", granted)
    monkeypatch.setattr(VirtualLoop, "call_soon_threadsafe", VirtualLoop.call_soon)
    monkeypatch.setattr(asyncio, "to_thread", here)
    return kazoo


async def granted(host: str, _: int, asked_ms: int, tls: object) -> int:
    """Answer for the second host. The first host never answers."""
    assert tls is None
    if host == "dead":
        await asyncio.get_running_loop().create_future()
    return min(asked_ms, 4_000)


async def connected(loop: asyncio.AbstractEventLoop, session_s: float = SESSION_S) -> Any:
    return await zookeeper.connect(
        ["dead:2181", "alive:2181"],
        root="/broker",
        session_timeout_ms=int(session_s * 1000),
        clock=VirtualClock(loop),
    )


def test_only_the_heartbeat_asks_a_silent_server(
    kazoo: FakeKazoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        node = await connected(loop)
        refused = count_refused(node.tree, monkeypatch)
        kazoo.serves = False
        fell_silent = loop.time()
        deadline = fell_silent + 1000
        waiting = [asyncio.ensure_future(node.acquire(slot, deadline)) for slot in SLOTS]
        await pass_time(20 * SESSION_S)
        # Requests that were sent before the silence was noticed have a time-out, too.
        asked = kazoo.asked_since(fell_silent + SESSION_S + 0.1)
        assert len(asked) > 10, "contact that is back must be noticed"
        assert set(asked) == {"exists"}
        assert len(refused) <= 2 * len(SLOTS), (
            "a refused caller waits for contact, and does not ask again"
        )
        assert not any(attempt.done() for attempt in waiting)
        for attempt in waiting:
            attempt.cancel()
        await asyncio.wait(waiting)

    simulate(scenario)


def count_refused(
    tree: zookeeper.ZooKeeperTree, monkeypatch: pytest.MonkeyPatch
) -> list[Unanswered]:
    """Return a list to which the tree adds the errors of its callers from now on."""
    refused: list[Unanswered] = []

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any, **options: Any) -> Any:
            try:
                return await call(*arguments, **options)
            except Unanswered as error:
                refused.append(error)
                raise

        return counted

    for name in ("create", "children", "get"):
        monkeypatch.setattr(tree, name, counting(getattr(tree, name)))
    return refused


def test_callers_that_waited_for_a_silent_server_go_on_by_themselves(kazoo: FakeKazoo) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        node = await connected(loop)
        recorder = CallRecorder()
        node.on_contact(recorder)
        kazoo.serves = False
        waiting = [asyncio.ensure_future(node.acquire(slot, loop.time() + 1000)) for slot in SLOTS]
        await reaches(node, Contact.SUSPENDED)
        await pass_time(5 * SESSION_S)
        kazoo.serves = True
        leases = await within(
            2 * SESSION_S, asyncio.gather(*waiting), lambda: f"{recorder.arguments}"
        )
        assert all(lease.valid for lease in leases)
        assert recorder.arguments == [Contact.SUSPENDED, Contact.CONNECTED]

    simulate(scenario)


def test_a_new_connection_of_kazoo_is_used_at_once(kazoo: FakeKazoo) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        node = await connected(loop)
        kazoo.serves = False
        waiting = asyncio.ensure_future(node.acquire(SLOTS[0], loop.time() + 1000))
        await reaches(node, Contact.SUSPENDED)
        kazoo.serves = True
        kazoo.report(KazooState.SUSPENDED)
        kazoo.report(KazooState.CONNECTED)
        assert (await within(0.1, waiting, lambda: f"{node.contact}")).valid

    simulate(scenario)


@pytest.mark.parametrize(("asked_s", "granted_s"), [(60.0, 4.0), (1.0, 1.0)])
def test_a_node_starts_although_some_hosts_do_not_answer(
    kazoo: FakeKazoo, asked_s: float, granted_s: float
) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        kazoo.hosts = [*[("dead", 2181)] * 3, ("alive", 2181)]
        node = await connected(loop, asked_s)
        assert node.contact is Contact.CONNECTED
        recorder = CallRecorder()
        node.on_contact(recorder)
        await pass_time(3 * asked_s)
        assert not recorder.arguments, "a heartbeat was answered in time"
        kazoo.serves = False
        await pass_time(granted_s + 0.1)
        assert node.contact is Contact.SUSPENDED, "a host that answers was asked for the time-out"

    simulate(scenario)
