"""Run the fuzzer: send requests on several connections, and collect the problems."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.kit.fuzzing.connections import FuzzedConnection
from tests.kit.fuzzing.corpus import Answer, Corpus
from tests.kit.fuzzing.grammar import NAMESPACE, STREAMS, TOPICS, Case, Grammar
from tests.kit.fuzzing.mutation import misframed, mutated, wire

CONNECTIONS = 12
TOGETHER_MAX = 12
"""Requests that are sent at once on one connection."""
MISFRAMED = 0.06
"""The share of exchanges that end with bytes whose framing may be wrong."""
PROBLEMS_MAX = 50
NO_PROBLEM = frozenset({501, 503, 505})
"""Statuses from 500 on that are right answers to wrong requests."""
BESIDE_A_DELETE = "Part of the rollback may be missing"
"""An honest answer to a rollback while its topic is deleted."""
AT_THE_DEADLINE = "deadline passed"
"""The same to a write that asks for less time than it takes."""


@dataclass
class Found:
    """The counts of a run, and its ``problems`` with the sent bytes in base64."""

    sent: int = 0
    answered: int = 0
    seconds: float = 0.0
    kept: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str, data: bytes) -> None:
        """Keep a problem, up to PROBLEMS_MAX."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{problem}: {base64.b64encode(data).decode()}")


class Run:
    """Sends requests to a broker until enough are answered."""

    def __init__(self, port: int, seed: int, begin_with: Iterable[Case] = ()) -> None:
        """Draw all random numbers from a seed; the order of the broker's answers changes the cases, too."""
        self._port = port
        self._rng = random.Random(seed)
        self._grammar = Grammar(self._rng)
        self.corpus = Corpus()
        self.corpus.cases += begin_with
        self.found = Found()

    async def send(self, requests: int) -> Found:
        """Send requests until so many are answered; return the findings."""
        began = time.monotonic()
        await asyncio.gather(*(self._connection(requests) for _ in range(CONNECTIONS)))
        self.found.seconds = time.monotonic() - began
        return self.found

    def next_case(self) -> Case:
        """Make a case: 4 of 10 from the grammar unchanged, the others by a mutation of it or of the corpus."""
        rng = self._rng
        case = self._grammar.case()
        if rng.random() < 0.4:
            return case
        grown = self.corpus.any(rng) if rng.random() < 0.7 else None
        return mutated(grown or case, case, rng)

    async def _connection(self, requests: int) -> None:
        connection = await FuzzedConnection.to(self._port)
        while self.found.answered < requests:
            if not connection.open or connection.closing:
                connection.abort()
                connection = await FuzzedConnection.to(self._port)
            if self._rng.random() < MISFRAMED:
                await self._misframed(connection)
                connection.closing = True
            else:
                await self._exchange(connection)
        connection.abort()

    def _some(self) -> list[tuple[Case, bytes]]:
        cases = [self.next_case() for _ in range(self._rng.randrange(1, TOGETHER_MAX + 1))]
        return [(case, wire(case)) for case in cases if not _is_stream(case)]

    async def _exchange(self, connection: FuzzedConnection) -> None:
        some = self._some()
        data = b"".join(request for _, request in some)
        self.found.sent += len(some)
        try:
            answers = await connection.exchange(data, len(some))
        except TimeoutError:
            self.found.note(f"silence after {len(connection.answers)} of {len(some)} answers", data)
            connection.abort()
            return
        if len(answers) < len(some) and not connection.closing:
            self.found.note(f"cut after {len(answers)} of {len(some)} answers", data)
        for (case, request), answer in zip(some, answers, strict=False):
            self._look(answer, request)
            self.found.routes[case.route] += 1
            self.found.kept += self.corpus.take(case, answer)

    async def _misframed(self, connection: FuzzedConnection) -> None:
        some = self._some()
        requests = [request for _, request in some]
        requests.append(misframed(wire(self.next_case()), self._rng))
        self.found.sent += len(requests)
        data = b"".join(requests)
        for answer in await connection.last(data):
            self._look(answer, data)

    def _look(self, answer: Answer, request: bytes) -> None:
        self.found.answered += 1
        self.found.statuses[answer.status] += 1
        if answer.status < 500 and answer.status:
            return
        is_late = AT_THE_DEADLINE in answer.text and b"request-timeout:" in request.lower()
        if answer.status not in NO_PROBLEM and not is_late and BESIDE_A_DELETE not in answer.text:
            self.found.note(f"{answer.status} {answer.error} {answer.text}", request)


def _is_stream(case: Case) -> bool:
    """Return whether the reply may have no end; a mutation may have changed the target."""
    return case.route in STREAMS or case.target.partition("?")[0].endswith("/events")


async def prepare(port: int) -> None:
    """Create the topics that cases use, with a message in each."""
    connection = await FuzzedConnection.to(port)
    for topic in TOPICS:
        path = f"/v1/namespaces/{NAMESPACE}/topics/{topic}"
        create = wire(Case("", "PUT", path, (), b""))
        publish = wire(Case("", "POST", f"{path}/publish", (("Content-Type", "text/plain"),), b"x"))
        answers = await connection.exchange(create + publish, 2)
        assert [answer.status for answer in answers] == [200, 200], answers
    connection.abort()
