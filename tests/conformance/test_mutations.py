"""No malformed body makes a broker fail, and a refused body changes nothing.

Mutants go to the handlers as values, and some of them over HTTP. None may get a server error. After each refusal the
topic must read exactly as before.
"""

from collections import Counter

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.model import Poll
from broker.wire import avro
from tests.kit.mutations import LAST_FIELDS, PROPERTIES, Mutant, mutants
from tests.kit.serving import Answered, Broker, Http, listening, topic_path

MUTANTS = 100_000
MUTANTS_DRAWN = 8_000
MUTANTS_OVER_HTTP = 2_000
MUTANTS_A_TOPIC = 250
"""The number of mutants for one topic. The test reads the whole topic after each, so the topic must stay small."""
TARGET, SETTINGS = "t", "p"
EVERYTHING = avro.encode_poll(Poll())
AVRO = {"Content-Type": "avro/binary"}

pytestmark = pytest.mark.slow


class StillClock(SystemClock):
    """Its wall clock stands still: a message that a mutant published with a short lifetime does not expire."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ms = super().now_ms()

    @override
    def now_ms(self) -> int:
        return self._now_ms


def topic_of(mutant: Mutant) -> str:
    # A mutant with valid properties would change the effect of publishes to its topic.
    return SETTINGS if mutant.target is PROPERTIES else TARGET


def request(mutant: Mutant) -> tuple[str, str, bytes, dict[str, str]]:
    method = "PUT" if mutant.target is PROPERTIES else "POST"
    headers = {"Content-Type": mutant.target.content_type}
    return method, topic_path(topic_of(mutant), mutant.target.action), mutant.body, headers


class Trial:
    """Sends mutants to one broker, and checks their effects."""

    def __init__(self, caller: Broker | Http) -> None:
        self.call = caller.call if isinstance(caller, Broker) else caller
        self._ask = caller.ask if isinstance(caller, Broker) else caller
        self.statuses: Counter[str] = Counter()
        self._state: dict[str, bytes] = {}

    async def fresh_topics(self) -> None:
        for topic in (TARGET, SETTINGS):
            await self.call("DELETE", topic_path(topic))
            assert (await self.call("PUT", topic_path(topic))).status == 200
            self._state[topic] = await self._look(topic)

    async def _look(self, topic: str) -> bytes:
        """Return the visible state of a topic: its messages, or its properties."""
        if topic == SETTINGS:
            seen = await self._ask("GET", topic_path(topic))
        else:
            seen = await self._ask("POST", topic_path(topic, "poll"), EVERYTHING, AVRO)
        assert seen.status == 200
        return seen.body

    async def send(self, mutant: Mutant) -> None:
        reply = await self.call(*request(mutant))
        assert reply.status < 500, (mutant, reply)
        self.statuses[self._outcome(mutant, reply)] += 1
        topic = topic_of(mutant)
        seen = await self._look(topic)
        if reply.status == 200:
            self._state[topic] = seen
        assert seen == self._state[topic], (mutant, reply)

    @staticmethod
    def _outcome(mutant: Mutant, reply: Answered) -> str:
        if reply.status == 200:
            return "done"
        # A completely decoded body may still be refused, because of the topic's state or of the time.
        decoded = reply.status in (409, 422) or reply.headers["Broker-Error"] != "bad_request"
        last = reply.body.decode().find(LAST_FIELDS[mutant.target]) in (0, 12)
        return "refused decoded" if decoded or last else "refused"


async def run(trial: Trial, seed: int, count: int) -> None:
    for number, mutant in enumerate(mutants(seed, count)):
        if number % MUTANTS_A_TOPIC == 0:
            await trial.fresh_topics()
        await trial.send(mutant)
    assert sum(trial.statuses.values()) == count
    decoded = trial.statuses["done"] + trial.statuses["refused decoded"]
    assert decoded >= 0.3 * count, trial.statuses
    assert trial.statuses["refused"] >= 0.2 * count, trial.statuses


async def test_mutants_of_today_in_the_process(drawn_seed: int) -> None:
    broker = Broker(clock=StillClock())
    await run(Trial(broker), drawn_seed, MUTANTS_DRAWN)
    await broker.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_mutants_in_the_process() -> None:
    broker = Broker(clock=StillClock())
    await run(Trial(broker), 11, MUTANTS)
    await broker.close()


async def test_mutants_over_http() -> None:
    broker = Broker(clock=StillClock())
    async with listening(broker) as http:
        await run(Trial(http), 12, MUTANTS_OVER_HTTP)
    await broker.close()
