"""Route one request from the node that received it to the topic's leader, and return the leader's answer.

::

    look up the known leader ──this node──▶ local handler ──NotLeader─────┐
          ▲    │another node                                              │
          │    ▼                                                          │
          │  forward, once ──▶ an answer ──▶ deciding ──REPLY──▶ client   │
          │                                     │                         │
          └──── jittered pause ◀── AGAIN, REPEAT┴─────────────────────────┘    until the deadline

While leadership moves, requests wait here for the new leader: none is refused because of the move. If the last node
that was asked does not answer a read of storage before the deadline, this node reads storage itself. For this node's
own topics the first attempt costs only a look at the tenure.

A paused process, or a failed machine, does not close its connections. The sender of a request would wait until the
deadline, although another node already leads. So while a request is in flight, this node checks regularly that the
topic's place is still the node asked. After a change it waits for a grace period, because a leader that hands over
still answers the requests that it has accepted.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from broker.clock import Clock
from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import HERE, Tenure, TopicPlacement
from broker.errors import BrokerError, NoLeader, NotLeader
from broker.http.answer import NoAnswer, NotSent
from broker.metrics import OK, Metrics
from broker.model import TopicId
from broker.operations.operation import RepeatEffect
from broker.routing.decisions import (
    Call,
    LeaderSeen,
    Next,
    PeerAnswer,
    Relayed,
    after_answer,
    after_loss,
    at_the_deadline,
    outcome_unknown,
)
from broker.routing.forwarder import Forwarder
from broker.routing.lanes import SentLane
from broker.routing.nodeheaders import Repeat, check_serves
from broker.shield import bare

PAUSE_S: Final = 0.015
PAUSE_GROWTH: Final = 1.5
"""With this growth the next pause is at most about half of the time that the request has already waited."""
PAUSE_S_MAX: Final = 0.5
KEY_BYTES: Final = 16
READS_ELSEWHERE_MAX: Final = 2
"""The most other nodes that are asked for a read before this node reads storage itself."""

LOOK_S: Final = 0.1
"""How often this node checks whether the node asked should still lead."""
GRACE_S: Final = 0.5
"""The time for which it still waits if another node should lead."""

Result = TypeVar("Result")
Local = Callable[[Repeat | None], Awaitable[Result]]
"""This node's own handler. Its argument makes a write repeatable if an earlier attempt went to another node. It raises
BrokerError; NotLeader means that another node leads, and nothing was done."""


class _LookAgain(Exception):
    """The request has no answer; look up the leader again."""


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
        """Route in the name of ``me``. ``leads`` tells whether this node holds a topic's log."""
        self._tenure = tenure
        self._leads = leads
        self.forwarder = forwarder
        self.clock = clock
        self.metrics = metrics
        self.me = me
        self.pause: Callable[[float], Awaitable[None]] = clock.sleep
        """Waits for a number of seconds, or until the leaders change."""
        self.waits_until = math.inf
        """From this time (monotonic) on, no request waits for a leader, even before its deadline: the node is stopping."""

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return the node that answers for a topic: this node if it leads, else the one that should lead."""
        return HERE if self._leads(topic) else self._tenure.place(topic)

    async def answer(self, call: Call, local: Local[Result]) -> Result | Relayed:
        """Return the leader's answer, of this node or another.

        Raises:
            BrokerError: the error of this node's handler.
            NoLeader: no leader was found before the deadline.
            OutcomeUnknown: the request may have been done.
        """
        return await _Journey(self, call, local).answer()


class _Journey(Generic[Result]):
    """One request, with the attempts made and the facts known so far."""

    def __init__(self, routing: Routing, call: Call, local: Local[Result]) -> None:
        self._routing = routing
        self._forwarder = routing.forwarder
        self._clock = routing.clock
        self._call = call
        self._local = local
        self._key: str | None = None
        self._doubts = 0
        """The number of attempts that may have been done."""
        self._elsewhere_read = 0
        self._asked_here = False
        """True if the last attempt was on this node."""
        self._is_sent = False
        """True if the last attempt on another node may have been sent."""
        self._hint: LeaderSeen | None = None
        self._place: tuple[SentLane, int] | None = None
        self._reason = "none is known"
        self._sent_at: float | None = None

    @property
    def _in_doubt(self) -> bool:
        return self._doubts > 0

    def _repeat(self) -> Repeat:
        """Return the properties that make the next attempt repeatable.

        An attempt that was certainly not done does not count: no copy of it is in flight, and its key is still unused.
        If it counted, the leader would look up in storage the key of each request that was sent in the wrong epoch.
        """
        return Repeat(self._key, self._doubts + 1)

    async def answer(self) -> Result | Relayed:
        """Try until there is an answer, or the deadline has passed."""
        code = BrokerError.code
        try:
            answer = await self._try()
        except BrokerError as error:
            code = error.code
            raise
        else:
            code = OK
            if isinstance(answer, Relayed):
                code = answer.peer_answer.code or OK
            return answer
        finally:
            self._end(code)

    async def _try(self) -> Result | Relayed:
        """Return the first answer. Raises the error for the deadline if there was none in time."""
        pause_s_max = PAUSE_S
        while True:
            try:
                return await self._attempt()
            except _LookAgain:
                pause_s = random.uniform(0, pause_s_max)  # noqa: S311 - It only spreads the load.
            if self._clock.monotonic() + pause_s >= min(
                self._call.deadline, self._routing.waits_until
            ):
                break
            pause_s_max = min(pause_s_max * PAUSE_GROWTH, PAUSE_S_MAX)
            await self._routing.pause(pause_s)
        if self._call.kind.is_for_any_node and not self._asked_here:
            with suppress(_LookAgain):
                # The last node used up the time, but storage can answer a read, too.
                return await self._ask_this_node()
        call = self._call
        raise at_the_deadline(
            call.kind, self._reason, in_doubt=self._in_doubt, own_key=call.own_key
        )

    def _end(self, code: str) -> None:
        """Note that the client has the outcome of the request."""
        if self._place is not None:
            lane, number = self._place
            lane.resolved(number)
        if self._sent_at is not None:
            took_s = self._clock.monotonic() - self._sent_at
            self._routing.metrics.forwarded(self._call.name, code, took_s)

    async def _attempt(self) -> Result | Relayed:
        """Ask the leader that is known now. Raises _LookAgain."""
        url = self._leader()
        if url is None:
            return await self._ask_this_node()
        if self._call.kind.is_for_any_node:
            if self._elsewhere_read >= READS_ELSEWHERE_MAX:
                return await self._ask_this_node()
            self._elsewhere_read += 1
        try:
            relayed = await self._send(url)
        except (NotSent, NoAnswer) as error:
            self._reason = str(error)
            if isinstance(error, NoAnswer) and not isinstance(error, LeaderChanged):
                # The node may stay silent, but storage can answer a read, too.
                self._elsewhere_read = READS_ELSEWHERE_MAX
            self._apply(after_loss(self._call.kind, sent=isinstance(error, NoAnswer)))
            raise _LookAgain from error
        answer = relayed.peer_answer
        self._reason = answer.code
        if self._decide(answer) is not Next.REPLY:
            raise _LookAgain
        return relayed

    def _leader(self) -> str | None:
        """Return the URL of the node to ask; None for this one.

        Raises:
            _LookAgain: no live node with a known protocol may lead the topic.
        """
        hint, self._hint = self._hint, None
        if hint is not None and hint.url not in ("", self._routing.me.url):
            return hint.url
        place = self._routing.place(self._call.topic)
        if place.here:
            return None
        if place.node is None:
            if self._call.kind.is_for_any_node:
                return None
            self._reason = "no live node may lead it"
            raise _LookAgain
        try:
            check_serves(place.node.protocol)
        except NoLeader as error:
            self._reason = error.message
            raise _LookAgain from error
        return place.node.url

    async def _ask_this_node(self) -> Result:
        """Let this node's own handler answer."""
        self._asked_here = True
        repeat = None
        if self._key is not None or self._in_doubt:
            # Without an epoch, this node looks up the key in storage.
            repeat = self._repeat()
        try:
            return await self._local(repeat)
        except NotLeader as error:
            self._reason = error.message
            self._hint = LeaderSeen(error.url or "", error.node, error.epoch)
            raise _LookAgain from error
        except BrokerError as error:
            self._reason = error.message
            # A publish on this node without any key can't be repeated either.
            repeatable = repeat is not None or self._call.kind is not RepeatEffect.KEYED
            kind = self._call.kind if repeatable else RepeatEffect.ONCE
            if self._decide(PeerAnswer.by_error(error), kind) is Next.REPLY:
                raise
            raise _LookAgain from error

    def _decide(self, answer: PeerAnswer, kind: RepeatEffect | None = None) -> Next:
        """Decide after an answer. Raises OutcomeUnknown if the outcome stays unknown."""
        call = self._call
        kind = call.kind if kind is None else kind
        step = after_answer(kind, answer, in_doubt=self._in_doubt, own_key=call.own_key)
        self._apply(step)
        return step

    def _apply(self, step: Next) -> None:
        """Note a decision. Raises OutcomeUnknown if the outcome stays unknown."""
        if step is Next.REPEAT:
            self._doubts += 1
        elif step is Next.UNKNOWN:
            raise outcome_unknown(self._reason, own_key=self._call.own_key)

    async def _send(self, url: str) -> Relayed:
        """Send the request to a node. If only the epoch was wrong, send it again at once."""
        call = self._call
        self._asked_here = False
        if call.kind is RepeatEffect.KEYED and not call.own_key and self._key is None:
            self._key = secrets.token_hex(KEY_BYTES)
        if call.kind.is_in_a_lane and call.source is not None and self._place is None:
            lane = self._forwarder.lanes.of(call.source, call.topic)
            self._place = lane, lane.begin()
        if self._sent_at is None:
            self._sent_at = self._clock.monotonic()
        relayed = await self._send_once(url)
        if self._is_only_epoch(url, relayed):
            relayed = await self._send_once(url)
            self._is_only_epoch(url, relayed)
        return relayed

    async def _send_once(self, url: str) -> Relayed:
        self._is_sent = False
        sending = self._forwarder.send(url, self._call, self._repeat(), self._place, self._begins)
        if not self._call.kind.is_repeatable:
            return await sending
        try:
            return await unless_moved(sending, self._placed_at)
        except LeaderChanged as error:
            if self._is_sent:
                raise
            raise NotSent(f"{error}: the request still waited for its turn") from error

    def _begins(self) -> None:
        self._is_sent = True

    def _placed_at(self) -> str | None:
        node = self._routing.place(self._call.topic).node
        return None if node is None else node.url

    def _is_only_epoch(self, url: str, relayed: Relayed) -> bool:
        """Learn the leader and its epoch from a 421. Return whether the node asked does lead, in another epoch."""
        if relayed.reply.status != NotLeader.http_status:
            return False
        named = LeaderSeen.named_in(relayed.reply)
        self._forwarder.epochs.learn(self._call.topic, named.epoch)
        if named.url == url and named.epoch is not None:
            return True
        self._hint = named
        return False


class LeaderChanged(NoAnswer):
    """Another node should lead before an answer came."""


class _Watch:
    """Calls ``where`` every ``LOOK_S``, and ends ``scope`` ``GRACE_S`` after its result has changed."""

    def __init__(self, where: Callable[[], object], scope: asyncio.Timeout) -> None:
        self._where = where
        self._was = where()
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._where() == self._was:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        else:
            self._scope.reschedule(self._loop.time() + GRACE_S)

    def end(self) -> None:
        """Stop watching."""
        self._timer.cancel()


async def unless_moved(asking: Awaitable[Result], where: Callable[[], object]) -> Result:
    """Return the result of ``asking``, but cancel it soon after ``where()`` has changed.

    Raises:
        LeaderChanged: ``asking`` was cancelled.
    """
    try:
        async with asyncio.timeout(None) as scope:
            watch = _Watch(where, scope)
            try:
                return await asking
            finally:
                watch.end()
    except TimeoutError as error:
        raise LeaderChanged("another node leads, and the node asked has not answered") from bare(
            error
        )
