from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.cluster_view import Get, cluster_view
from broker.clock import SystemClock
from broker.coordination.ports import Contact, Members, NodeInfo
from broker.errors import Unavailable
from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.model import TopicId
from broker.storage.call_health import CallHealth
from broker.testing.memory import MemoryRecords
from tests.kit.serving import Broker, topic_path

ME = NodeInfo(3, "life", "http://me:1", "1.0", 1)
PLAIN = {"Content-Type": "text/plain"}


class Parts:
    """The parts of a node that its view of the cluster uses."""

    def __init__(self, broker: Broker) -> None:
        self.membership: Any = None
        self.asked: list[tuple[str, Any, float]] = []
        self.answer: HttpAnswer | Exception = HttpAnswer(200, {}, b"{}")
        self.coordinator: Any = SimpleNamespace(contact=Contact.LOST, hint=self._hint)
        self.hints: list[str] = []
        clock = SystemClock()
        self.health = CallHealth(clock.now_ms)
        self.view = cluster_view(
            coordinator=self.coordinator,
            membership=lambda: self.membership,
            slots_led=lambda: 17,
            leaders=broker.topics.leaders,
            exchange=self._exchange,
            records=MemoryRecords(),
            health=self.health,
            clock=clock,
        )

    async def _exchange(self, url: str, ask: Any, seconds: float) -> HttpAnswer:
        self.asked.append((url, ask, seconds))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _hint(self, what: str) -> None:
        self.hints.append(what)

    def join(self) -> None:
        self.membership = SimpleNamespace(me=ME, members=Members(1, {3: ME}), session=0xAB)


@pytest.fixture
async def parts(broker: Broker) -> Parts:
    return Parts(broker)


async def test_a_node_that_has_not_joined_says_so(parts: Parts) -> None:
    for asked in (parts.view.me, parts.view.members, parts.view.session):
        with pytest.raises(Unavailable, match="not joined"):
            asked()


async def test_the_view_asks_coordination_and_membership(broker: Broker, parts: Parts) -> None:
    parts.join()
    broker.topics.leaders.claims.clocks.skew_ms = -4
    view = parts.view
    assert (view.me(), view.members().nodes, view.session()) == (ME, {3: ME}, "0xab")
    assert (view.contact(), view.slots_led(), view.clock_skew_ms()) == (Contact.LOST, 17, -4)
    parts.health.ended("told", "no")
    assert view.storage().errors == 1
    await view.hint("placement")
    assert parts.hints == ["placement"]
    parts.membership.session = 0
    assert view.session() is None


async def test_another_node_is_asked(parts: Parts) -> None:
    parts.answer = HttpAnswer(200, {}, b'{"node": 1}')
    assert await parts.view.ask("http://a:1", "/v1/cluster/node", 2.0) == b'{"node": 1}'
    assert parts.asked == [("http://a:1", Get("/v1/cluster/node"), 2.0)]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (NotSent("refused"), "refused"),
        (NoAnswer("cut"), "cut"),
        (HttpAnswer(503, {}, b"later"), "status 503"),
    ],
)
async def test_a_failed_request_to_another_node_is_unavailable(
    parts: Parts, answer: HttpAnswer | Exception, told: str
) -> None:
    parts.answer = answer
    with pytest.raises(Unavailable, match=told):
        await parts.view.ask("http://a:1", "/v1/cluster/node", 2.0)


async def test_a_node_leads_the_topics_whose_logs_it_holds(broker: Broker) -> None:
    leaders = broker.topics.leaders
    assert leaders.epochs() == {}
    published = await broker.call("POST", topic_path("t", "publish"), b"x", PLAIN)
    assert published.status == 200
    assert leaders.epochs() == {TopicId("default", "t"): 1}
    assert (await broker.call("DELETE", topic_path("t"))).status == 200
    assert leaders.epochs() == {}
