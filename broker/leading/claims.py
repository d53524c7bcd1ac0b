"""Claiming a log until it is held, or until it is clear that it can't be.

A claim is one compare-and-set. One whose outcome is unknown is simply followed by another, under a
higher epoch: if the first did take place, the second fences it.
"""

from __future__ import annotations

import random

from broker.clock import Clock
from broker.errors import Fenced, NoLeader, OutcomeUnknown, StorageFull, Unavailable
from broker.model import RowId
from broker.storage.keys import LogId
from broker.storage.ports import Hold, LogStore

BACK_OFF_S = 0.02
BACK_OFF_MAX_S = 1.0


async def claim(  # noqa: PLR0913 - Each is named by its callers.
    store: LogStore,
    log: LogId,
    *,
    owner: str,
    clock: Clock,
    keep_after: RowId,
    deadline: float,
    jitter: random.Random,
) -> Hold:
    """Return a hold on ``log``, claiming again after each unknown outcome until ``deadline``.

    Raises:
        NoLeader: the deadline (monotonic seconds) passed.
        StaleGeneration, Deleted: see LogStore.claim; claiming again would not help.
        StorageFull: likewise; what the claim was for is certainly not done.
        StorageCorrupt: likewise.
    """
    back_off_s = BACK_OFF_S
    while True:
        try:
            return await store.claim(log, owner, keep_after=keep_after)
        except (Fenced, OutcomeUnknown, Unavailable) as error:
            if clock.monotonic() + back_off_s > deadline:
                raise NoLeader(
                    f"Nobody leads topic '{log.topic}' just now: {error.message}"
                ) from error
        except StorageFull as error:
            # Whether the claim is stored does not matter: nothing else was sent.
            raise StorageFull(error.message) from error
        await clock.sleep(back_off_s * jitter.uniform(0.5, 1.0))
        back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)
