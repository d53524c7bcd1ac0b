"""The way of one request from the node that received it to an answer of the topic's leader.

::

    who leads, by what is known now? ──here──▶ local handler ──NotLeader──┐
          ▲    │elsewhere                                                 │
          │    ▼                                                          │
          │  forward, once ──▶ an answer ──▶ deciding ──REPLY──▶ client   │
          │                                     │                         │
          └──── jittered pause ◀── AGAIN, REPEAT┴─────────────────────────┘    until the deadline

Requests wait here for the new leader while leadership moves: nobody is refused because of that. A read
that the last node asked left without an answer until the deadline is read on this node after all. The
first attempt on this node's own topics costs a look at the tenure and nothing else.

How a node uses it::

    secret = await cluster_secret(records, clock)
    peers = HttpPeers()
    forwarder = Forwarder(peers, clock, Sender(me.instance, me.incarnation), secret)
    routing = Routing(tenure, forwarder, clock, metrics, me=me, leads=holds_the_log_of)
    receiving = Receiving(secret, clock)
    ...                                       # api.routed puts them around the handlers
    await peers.close()                       # after the last request was answered
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from broker.clock import Clock
from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import HERE, Tenure, TopicPlacement
from broker.errors import BrokerError, NoLeader, NotLeader
from broker.http.answer import NoAnswer, NotSent
from broker.metrics import OK, Metrics
from broker.model import TopicId
from broker.routing.decisions import (
    Next,
    PeerAnswer,
    RepeatEffect,
    after_answer,
    after_loss,
    at_the_deadline,
    outcome_unknown,
)
from broker.routing.forwarder import Elsewhere, Forwarder
from broker.routing.lanes import SentLane
from broker.routing.leader_watch import LeaderChanged, unless_moved
from broker.routing.nodeheaders import PROTOCOL, Repeat, spoken_with
from broker.routing.routed_calls import Call, Relayed

PAUSE_S: Final = 0.015
PAUSE_GROWTH: Final = 1.5
"""So that whoever waits looks again after at most half as long as it has waited already."""
PAUSE_S_MAX: Final = 0.5
KEY_BYTES: Final = 16
READS_ELSEWHERE_MAX: Final = 2
"""How many nodes are asked for a read before this one reads storage itself."""

Result = TypeVar("Result")
Local = Callable[[Repeat | None], Awaitable[Result]]
"""This node's own handler. What it is given makes a write repeatable, where an earlier attempt went to
another node. Raises BrokerError; NotLeader if another node leads, in which case nothing was done."""


class _LookAgain(Exception):
    """Not answered; look again who leads."""


class Routing:
    """Finds for each request the node that answers it."""

    def __init__(
        self,
        tenure: Tenure,
        forwarder: Forwarder,
        clock: Clock,
        metrics: Metrics,
        *,
        me: NodeInfo,
        leads: Callable[[TopicId], bool],
    ) -> None:
        """Route in the name of ``me``, which ``leads`` a topic as long as it holds its log."""
        self._tenure = tenure
        self._leads = leads
        self.forwarder = forwarder
        self.clock = clock
        self.metrics = metrics
        self.me = me
        self.pause: Callable[[float], Awaitable[None]] = clock.sleep
        """Returns after so many seconds, or when there is news of who leads."""
        self.waits_until = math.inf
        """When (monotonic) nobody waits for a leader any more, whatever its deadline: the node stops."""

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return who answers for a topic: who leads it, or else who should."""
        return HERE if self._leads(topic) else self._tenure.place(topic)

    async def answer(self, call: Call, local: Local[Result]) -> Result | Relayed:
        """Return the leader's answer, of this node or another.

        Raises:
            BrokerError: what the leader here says; NoLeader if none was found until the deadline;
                OutcomeUnknown if nobody can say whether it was done.
        """
        return await _Journey(self, call, local).answer()


class _Journey(Generic[Result]):
    """One request on its way: what was tried, and what is known by now."""

    def __init__(self, routing: Routing, call: Call, local: Local[Result]) -> None:
        self._routing = routing
        self._forwarder = routing.forwarder
        self._clock = routing.clock
        self._call = call
        self._local = local
        self._key: str | None = None
        self._doubts = 0
        """How many attempts may have been done."""
        self._elsewhere_read = 0
        self._was_here = False
        """Whether this node itself was asked last."""
        self._hint: Elsewhere | None = None
        self._place: tuple[SentLane, int] | None = None
        self._why = "none is known"
        self._sent_at: float | None = None

    @property
    def _in_doubt(self) -> bool:
        return self._doubts > 0

    def _repeat(self, protocol: int = PROTOCOL) -> Repeat:
        """Return what makes the next attempt repeatable.

        What was certainly not done is no attempt: no copy of it is on the way, and its key is as new as it
        was. Were it counted, the leader would look in storage for the key of each request that was sent to
        the wrong epoch.
        """
        return Repeat(self._key, self._doubts + 1, protocol=protocol)

    async def answer(self) -> Result | Relayed:
        """Try until there is an answer, or no time is left."""
        code = BrokerError.code
        try:
            answer = await self._tried()
        except _LookAgain:
            call = self._call
            error = at_the_deadline(
                call.kind, self._why, in_doubt=self._in_doubt, own_key=call.own_key
            )
            code = error.code
            raise error from None
        except BrokerError as error:
            code = error.code
            raise
        else:
            code = OK
            if isinstance(answer, Relayed):
                code = answer.told.code or OK
            return answer
        finally:
            self._end(code)

    async def _tried(self) -> Result | Relayed:
        """Return the first answer. Raises _LookAgain if there was none in time."""
        try:
            return await self._attempt()
        except _LookAgain as error:
            # Most requests need no more than that, and the machinery below costs as much as they do.
            first = error
        try:
            return await self._tried_again(first)
        except _LookAgain:
            if not self._call.kind.is_reading or self._was_here:
                raise
            # Whoever was asked last took all the time that there was, and storage answers reads, too.
            return await self._here()

    async def _tried_again(self, first: _LookAgain) -> Result | Relayed:
        """Try on after a pause."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_LookAgain),
            wait=wait_random_exponential(
                multiplier=PAUSE_S, max=PAUSE_S_MAX, exp_base=PAUSE_GROWTH
            ),
            stop=self._is_over,
            sleep=self._routing.pause,
            reraise=True,
        )
        failed: _LookAgain | None = first

        async def attempt() -> Result | Relayed:
            nonlocal failed
            if failed is not None:
                error, failed = failed, None
                raise error
            return await self._attempt()

        answer: Result | Relayed = await retrying(attempt)
        return answer

    def _is_over(self, state: RetryCallState) -> bool:
        until = min(self._call.deadline, self._routing.waits_until)
        return bool(self._clock.monotonic() + state.upcoming_sleep >= until)

    def _end(self, code: str) -> None:
        """Note that whoever sent the request has its outcome."""
        if self._place is not None:
            lane, number = self._place
            lane.resolved(number)
        if self._sent_at is not None:
            took_s = self._clock.monotonic() - self._sent_at
            self._routing.metrics.forwarded(self._call.name, code, took_s)

    async def _attempt(self) -> Result | Relayed:
        """Ask whoever leads by what is known now. Raises _LookAgain."""
        url, protocol = self._leader()
        if url is None:
            return await self._here()
        if self._call.kind.is_reading:
            if self._elsewhere_read >= READS_ELSEWHERE_MAX:
                return await self._here()
            self._elsewhere_read += 1
        try:
            relayed = await self._send(url, protocol)
        except (NotSent, NoAnswer) as error:
            self._why = str(error)
            if isinstance(error, NoAnswer) and not isinstance(error, LeaderChanged):
                # Whoever is silent once may be so for long, and storage answers reads, too.
                self._elsewhere_read = READS_ELSEWHERE_MAX
            self._next(after_loss(self._call.kind, sent=isinstance(error, NoAnswer)))
            raise _LookAgain from error
        told = relayed.told
        self._why = told.code
        if self._after(told) is not Next.REPLY:
            raise _LookAgain
        return relayed

    def _leader(self) -> tuple[str | None, int]:
        """Return the URL of the node to ask, None for this one, and its protocol.

        Raises:
            _LookAgain: nobody may lead the topic that lives and can be spoken with.
        """
        hint, self._hint = self._hint, None
        if hint is not None and hint.url is not None and hint.url != self._routing.me.url:
            return hint.url, PROTOCOL
        place = self._routing.place(self._call.topic)
        if place.here:
            return None, PROTOCOL
        if place.node is None:
            if self._call.kind.is_reading:
                return None, PROTOCOL
            self._why = "no node that lives may lead it"
            raise _LookAgain
        try:
            return place.node.url, spoken_with(place.node.protocol)
        except NoLeader as error:
            self._why = error.message
            raise _LookAgain from error

    async def _here(self) -> Result:
        """Let this node's own handler answer."""
        self._was_here = True
        repeat = None
        if self._key is not None or self._in_doubt:
            # Without an epoch the key is looked up, whatever is remembered.
            repeat = self._repeat()
        try:
            return await self._local(repeat)
        except NotLeader as error:
            self._why = error.message
            self._hint = Elsewhere(error.node, error.url, error.epoch)
            raise _LookAgain from error
        except BrokerError as error:
            self._why = error.message
            # Without a key of some kind a publish here can't be repeated either.
            repeatable = repeat is not None or self._call.kind is not RepeatEffect.KEYED
            kind = self._call.kind if repeatable else RepeatEffect.ONCE
            if self._after(PeerAnswer.by_error(error), kind) is Next.REPLY:
                raise
            raise _LookAgain from error

    def _after(self, told: PeerAnswer, kind: RepeatEffect | None = None) -> Next:
        """Decide after an answer. Raises OutcomeUnknown if that is all there is to say."""
        call = self._call
        kind = call.kind if kind is None else kind
        step = after_answer(kind, told, in_doubt=self._in_doubt, own_key=call.own_key)
        self._next(step)
        return step

    def _next(self, step: Next) -> None:
        """Take note of a decision. Raises OutcomeUnknown if nothing more can be found out."""
        if step is Next.REPEAT:
            self._doubts += 1
        elif step is Next.UNKNOWN:
            raise outcome_unknown(self._why, own_key=self._call.own_key)

    async def _send(self, url: str, protocol: int) -> Relayed:
        """Send it there; again at once if the epoch was all that was wrong."""
        call = self._call
        self._was_here = False
        if call.kind is RepeatEffect.KEYED and not call.own_key and self._key is None:
            self._key = secrets.token_hex(KEY_BYTES)
        if call.kind.is_in_a_lane and call.source is not None and self._place is None:
            lane = self._forwarder.lanes.of(call.source, call.topic)
            self._place = lane, lane.begin()
        if self._sent_at is None:
            self._sent_at = self._clock.monotonic()
        relayed = await self._send_once(url, protocol)
        if self._is_only_epoch(url, relayed):
            relayed = await self._send_once(url, protocol)
            self._is_only_epoch(url, relayed)
        return relayed

    async def _send_once(self, url: str, protocol: int) -> Relayed:
        sending = self._forwarder.send(url, self._call, self._repeat(protocol), self._place)
        if not self._call.kind.is_repeatable:
            return await sending
        return await unless_moved(sending, self._placed_at)

    def _placed_at(self) -> str | None:
        node = self._routing.place(self._call.topic).node
        return None if node is None else node.url

    def _is_only_epoch(self, url: str, relayed: Relayed) -> bool:
        """Learn from a 421; whether it says that this very node leads, in another epoch."""
        if relayed.reply.status != NotLeader.http_status:
            return False
        told = Elsewhere.of(relayed.reply)
        self._forwarder.epochs.learn(self._call.topic, told.epoch)
        if told.url == url and told.epoch is not None:
            return True
        self._hint = told
        return False
