"""Claim a log again and again until this node holds it, or until it certainly can't.

A claim changes the head of the log's last page, and then its root (storage/log.py). After a claim with an unknown
outcome, this module claims again, under a higher epoch: if the first claim was done, the second one fences it. Each
claim needs a new permit. If another node's claim came first, this module tells the tenure: two nodes must not take a
log from each other in turns.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from broker import retries
from broker.clock import Clock
from broker.coordination.tenure import EVERYTHING, Tenure
from broker.errors import Fenced, NoLeader, OutcomeUnknown, StorageFull, Unavailable
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs

BACK_OFF_S = 0.02
BACK_OFF_MAX_S = 1.0
_AGAIN = (Fenced, OutcomeUnknown, Unavailable)


class SendTime(NamedTuple):
    """The time of this node's clock when it sent a change, and that clock's offset from the boot clock (ms)."""

    now_ms: int
    offset_ms: float


def read_clock(clock: Clock) -> SendTime:
    """Read both clocks."""
    now_ms = clock.now_ms()
    return SendTime(now_ms, now_ms - clock.monotonic() * 1000)


class Written(NamedTuple):
    """A write of this node, with the time of the write by the server's clock."""

    sent: SendTime
    server_ms: int
    answered_ms: int

    @property
    def ahead_ms(self) -> int:
        """Return the least distance by which this clock is ahead; 0 if the server's time is between both readings."""
        server_ms = self.server_ms
        return max(self.sent.now_ms - server_ms, 0) or min(self.answered_ms - server_ms, 0)


class Claimed(NamedTuple):
    """A hold, and the times of its claim; None if the claim tells nothing about the clocks."""

    hold: LogHold
    written: Written | None


def written(hold: LogHold, sent: SendTime, answered_ms: int) -> Written | None:
    """Return the times of a claim, None without a valid time of the server.

    A server's time that is not greater than that of the cell before is invalid: HBase never lets a cell's time fall,
    so it does not show the clock.
    """
    server_ms, before_ms = hold.claimed_server_ms, hold.before_server_ms
    if server_ms is None or (before_ms is not None and server_ms <= before_ms):
        return None
    return Written(sent, server_ms, answered_ms)


async def claim(  # noqa: PLR0913 - Each is named by its callers.
    logs: Logs,
    log: LogId,
    *,
    owner: str,
    clock: Clock,
    deadline: float,
    jitter: random.Random,
    tenure: Tenure = EVERYTHING,
) -> Claimed:
    """Return a hold on ``log``, claiming again after each unknown outcome until ``deadline``.

    Raises:
        NoLeader: the deadline (monotonic seconds) passed.
        NotLeader: another node should lead; nothing was done.
        StaleGeneration, Deleted: see Logs.claim; another claim would not help.
        StorageFull: likewise; the request behind the claim was certainly not done.
        StorageCorrupt: likewise.
    """

    async def once() -> Claimed:
        seen = await tenure.permit(log.topic, deadline)
        sent = read_clock(clock)
        try:
            hold = await logs.claim(log, owner, seen)
        except Fenced:
            tenure.fenced(log.topic)
            raise
        return Claimed(hold, written(hold, sent, clock.now_ms()))

    def pause_s(error: Exception, attempts: int) -> float | None:
        longest_s = retries.doubled_s(attempts, BACK_OFF_S, BACK_OFF_MAX_S)
        if not isinstance(error, _AGAIN) or clock.monotonic() + longest_s > deadline:
            return None
        return longest_s * jitter.uniform(0.5, 1.0)

    try:
        return await retries.repeat(once, pause_s, clock.sleep)
    except _AGAIN as error:
        raise NoLeader(f"No node leads topic '{log.topic}' just now: {error.message}") from error
    except StorageFull as error:
        # The claim may be stored, but no other write was sent: so the error is definite.
        raise StorageFull(error.message) from error
