"""The meter of a node: it asks the quotas where a request begins, and charges what a request has used.

Each kind has one place where it is taken::

    publish_bytes_s, publish_requests_s    of a principal: on the node that its request reaches, after the body was read
                                           of a topic: on its leader, just before the handler
    read_bytes_s                           on the node that the request reaches, while the reply is sent
    in_flight, waits, connections          on the node that the request reaches: ``Held``, which the budgets ask
    all others                             where the thing is created: ``check``

So no request is charged twice, however many nodes it passes: a node that gets a request from another node charges its topic
alone. A request that is refused for one quota is charged for none of its place. In the mode ``open`` there is no meter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from broker.access.quotas import (
    Bounds,
    Bucket,
    BucketRate,
    QuotaKind,
    Quotas,
    check_count,
    exceeded,
    name_of,
    share,
    taken,
)
from broker.clock import Clock
from broker.http.budget import BudgetKind
from broker.http.reply import Answer, ChunkedReply, Piece
from broker.http.request import PathNames, Request
from broker.model import TopicId
from broker.operations.operation import Action, Answerer, DeclaredOperation
from broker.principal import Principal
from broker.shield import unless_abandoned

BUCKETS_MAX: Final = 10_000
"""When so many buckets are kept, the full ones are forgotten: a new one is full, too."""
PUBLISHES: Final = frozenset({Action.PUBLISH, Action.ROLLBACK})
_READS: Final = frozenset({Action.CONSUME, Action.BROWSE})
_HELD: Final[Mapping[BudgetKind, QuotaKind]] = {
    BudgetKind.IN_FLIGHT: QuotaKind.IN_FLIGHT,
    BudgetKind.WAITING: QuotaKind.WAITS,
    BudgetKind.CONNECTIONS: QuotaKind.CONNECTIONS,
}


class _Demand(NamedTuple):
    """An amount that a bucket shall let through; ``of`` is the principal's name, or ``topic:`` and the topic's."""

    of: str
    kind: QuotaKind
    limit: int
    rate: BucketRate
    amount: float


class Meter:
    """Keeps the buckets and the counts of one node."""

    def __init__(
        self, quotas: Callable[[], Quotas], clock: Clock, nodes: Callable[[], int] = lambda: 1
    ) -> None:
        """Begin with full buckets. ``quotas`` returns those in force, ``nodes`` the number of the cluster's nodes."""
        self._quotas = quotas
        self._clock = clock
        self._nodes = nodes
        self._buckets: dict[tuple[str, QuotaKind], tuple[BucketRate, Bucket]] = {}
        self._forget_at = BUCKETS_MAX
        self._stages: dict[str, deque[float]] = {}
        self._held: WeakValueDictionary[str, Held] = WeakValueDictionary()

    # --- Where a client's request begins --------------------------------------------------------------

    def admit(
        self,
        principal: Principal,
        operation: DeclaredOperation,
        names: PathNames,
        headers: Mapping[str, str],
    ) -> Held | None:
        """Return what counts the connections, requests and waits of a client; None: nothing does.

        Refuse a request whose rate is used up, before its body is read, but charge nothing.

        Raises QuotaExceeded.
        """
        bounds = self._quotas().of_principal(principal)
        if operation.action in PUBLISHES and bounds:
            self._look(self._publish_demands(principal.name, bounds, _told_bytes(headers)))
        elif operation.action in _READS:
            self._look(self._read_demands(principal, names.topic, 0))
        if any(kind in bounds for kind in _HELD.values()):
            return self._held_by(principal)
        return None

    def begin(self, request: Request, operation: DeclaredOperation) -> None:
        """Charge a client's publish, whose body has arrived. Raises QuotaExceeded: nothing was charged."""
        if operation.action in PUBLISHES:
            bounds = self._quotas().of_principal(request.principal)
            if bounds:
                name = request.principal.name
                self._take(self._publish_demands(name, bounds, len(request.body)))

    def begin_led(self, request: Request) -> Bounds:
        """Charge the topic of a publish on the topic's leader, and return the topic's limits.

        Raises QuotaExceeded: nothing was charged.
        """
        topic = request.topic
        bounds = self._quotas().of_topic(topic)
        if bounds:
            demands = self._publish_demands(name_of(topic), bounds, len(request.body), nodes=1)
            self._take(demands)
        return bounds

    def not_led(self, topic: TopicId, size: int) -> None:
        """Take back what ``begin_led`` charged for a publish that this node could not do, since it does not lead."""
        bounds = self._quotas().of_topic(topic)
        if bounds:
            demands = self._publish_demands(name_of(topic), bounds, size, nodes=1)
            self._charge([each._replace(amount=-each.amount) for each in demands])

    def billed(self, request: Request, operation: DeclaredOperation, answer: Answer) -> Answer:
        """Return a client's answer; its bytes are charged as they are sent. A stream pauses while it is in debt.

        A page of a poll does not pause: the next poll of the same principal is refused instead.
        """
        if operation.action not in _READS or answer.status != 200:
            return answer
        of = request.principal, request.names.topic
        if not self._read_demands(*of, 0):
            return answer
        if isinstance(answer, ChunkedReply):
            is_stream = operation.by is Answerer.ANY
            answer.chunks = self._charged(request, answer.chunks, pauses=is_stream)
        else:
            self._charge(self._read_demands(*of, len(answer.body)))
        return answer

    async def _charged(
        self, request: Request, chunks: AsyncGenerator[Piece, None], *, pauses: bool
    ) -> AsyncGenerator[Piece, None]:
        of = request.principal, request.names.topic
        try:
            async for piece in chunks:
                wait_s = self._charge(self._read_demands(*of, len(piece)))
                yield piece
                if pauses and wait_s > 0:
                    await unless_abandoned(self._clock.sleep(wait_s), request.abandoned())
        finally:
            await chunks.aclose()

    # --- Where something is created -------------------------------------------------------------------

    def bounds(self, principal: Principal, topic: TopicId | None = None) -> tuple[Bounds, Bounds]:
        """Return the limits of a principal, and those of a topic."""
        quotas = self._quotas()
        return quotas.of_principal(principal), {} if topic is None else quotas.of_topic(topic)

    def check(
        self, principal: Principal, kind: QuotaKind, count: int, topic: TopicId | None = None
    ) -> None:
        """Raise QuotaExceeded if ``count``, with the new one, is more than the principal, or the topic, may have."""
        of_principal, of_topic = self.bounds(principal, topic)
        check_count(of_principal, kind, count, principal.name)
        if topic is not None:
            check_count(of_topic, kind, count, name_of(topic))

    def begin_stage(self, principal: Principal, topic: TopicId, life_s: float) -> None:
        """Count a stage that begins. Raises QuotaExceeded if too many began within the life of one."""
        now, counted = self._clock.monotonic(), []
        for name, bounds in zip(
            (f"{principal.name} {topic}", name_of(topic)),
            self.bounds(principal, topic),
            strict=True,
        ):
            if QuotaKind.STAGES in bounds:
                began = self._stages.setdefault(name, deque())
                while began and began[0] <= now - life_s:
                    began.popleft()
                check_count(bounds, QuotaKind.STAGES, len(began) + 1, name)
                counted.append(began)
        for began in counted:
            began.append(now)

    # --- Buckets --------------------------------------------------------------------------------------

    def _publish_demands(
        self, of: str, bounds: Bounds, size: int, *, nodes: int | None = None
    ) -> list[_Demand]:
        amounts = {QuotaKind.PUBLISH_REQUESTS_S: 1, QuotaKind.PUBLISH_BYTES_S: size}
        return list(self._demands(of, bounds, amounts, nodes or self._nodes()))

    def _read_demands(
        self, principal: Principal, topic: TopicId | None, size: int
    ) -> list[_Demand]:
        of_principal, of_topic = self.bounds(principal, topic)
        if not of_principal and not of_topic:
            return []
        amounts, nodes = {QuotaKind.READ_BYTES_S: size}, self._nodes()
        demands = list(self._demands(principal.name, of_principal, amounts, nodes))
        if topic is not None:
            demands += self._demands(name_of(topic), of_topic, amounts, nodes)
        return demands

    @staticmethod
    def _demands(
        of: str, bounds: Bounds, amounts: Mapping[QuotaKind, int], nodes: int
    ) -> Iterable[_Demand]:
        for kind, amount in amounts.items():
            limit = bounds.get(kind)
            if limit is not None:
                yield _Demand(of, kind, limit, share(limit, nodes), amount)

    def _bucket(self, demand: _Demand, now: float) -> Bucket:
        kept = self._buckets.get((demand.of, demand.kind))
        return demand.rate.now(None if kept is None else kept[1], now)

    def _look(self, demands: Iterable[_Demand]) -> None:
        """Raise QuotaExceeded if a bucket does not let its amount through now."""
        now = self._clock.monotonic()
        for demand in demands:
            wait_s = demand.rate.wait_s(self._bucket(demand, now), demand.amount)
            if wait_s > 0:
                raise exceeded(demand.kind, demand.limit, demand.of, wait_s)

    def _take(self, demands: Iterable[_Demand]) -> None:
        demands = list(demands)
        self._look(demands)
        self._charge(demands)

    def _charge(self, demands: Iterable[_Demand]) -> float:
        """Take amounts, whether the buckets hold them or not. Return after how many seconds no debt is left."""
        now, wait_s = self._clock.monotonic(), 0.0
        for demand in demands:
            bucket = taken(self._bucket(demand, now), demand.amount)
            self._buckets[demand.of, demand.kind] = demand.rate, bucket
            wait_s = max(wait_s, demand.rate.wait_s(bucket, 0))
        if len(self._buckets) > self._forget_at:
            self._forget_full(now)
        return wait_s

    def _forget_full(self, now: float) -> None:
        self._buckets = {
            key: (rate, bucket)
            for key, (rate, bucket) in self._buckets.items()
            if rate.now(bucket, now).level < rate.burst
        }
        self._forget_at = max(BUCKETS_MAX, 2 * len(self._buckets))

    def _held_by(self, principal: Principal) -> Held:
        held = self._held.get(principal.name)
        if held is None:
            held = self._held[principal.name] = Held(principal, self._quotas)
        return held


class Held:
    """The connections, requests and waits of one principal on one node. Its connections keep it."""

    def __init__(self, principal: Principal, quotas: Callable[[], Quotas]) -> None:
        """Begin at 0."""
        self._principal = principal
        self._quotas = quotas
        self._used: dict[QuotaKind, int] = {}

    def take(self, budget: BudgetKind, amount: int) -> None:
        """Count more. Raises QuotaExceeded."""
        kind = _HELD.get(budget)
        if kind is None:
            return
        used = self._used.get(kind, 0) + amount
        check_count(self._quotas().of_principal(self._principal), kind, used, self._principal.name)
        self._used[kind] = used

    def give(self, budget: BudgetKind, amount: int) -> None:
        """Count less."""
        kind = _HELD.get(budget)
        if kind is not None:
            self._used[kind] -= amount


def _told_bytes(headers: Mapping[str, str]) -> int:
    """Return the size of a body that its headers tell; 0 if they don't, or if it is compressed."""
    told = headers.get("Content-Length", "0")
    return int(told) if told.isdecimal() and "Content-Encoding" not in headers else 0
