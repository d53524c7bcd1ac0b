"""The records of access, as several nodes follow them: a change counts within two seconds, or no rule does."""

from __future__ import annotations

import asyncio

import pytest

from broker.access.access_records import STALE_S, AccessRecords
from broker.access.grants import Grant
from broker.errors import Unavailable
from broker.operations.operation import Action
from broker.principal import Principal
from broker.storage.records import Record
from broker.testing import simulated
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualClock, pass_time

ANN = Principal("ann")


class CutRecords(MemoryRecords):
    """Records that may not answer."""

    is_cut = False

    async def get(self, key: bytes) -> Record | None:
        if self.is_cut:
            raise Unavailable("storage does not answer")
        return await super().get(key)


@simulated()
async def test_every_node_follows_a_change_within_two_seconds() -> None:
    records, clock = MemoryRecords(), VirtualClock(asyncio.get_running_loop())
    one, other = AccessRecords(records, clock), AccessRecords(records, clock)
    await one.open()
    await other.open()
    text, token = await one.create_token("ann")
    await one.grant(Grant("ann", "reader"))
    await pass_time(2.0)
    assert other.rules().token(text, clock.now_ms()) == token
    assert other.rules().decide(ANN, Action.CONSUME, None) is not None
    await one.revoke_token(token.id)
    await one.revoke(Grant("ann", "reader"))
    await pass_time(2.0)
    assert other.rules().token(text, clock.now_ms()) is None
    assert other.rules().decide(ANN, Action.CONSUME, None) is None
    await one.close()
    await other.close()


@simulated()
async def test_a_node_that_can_not_look_for_changes_uses_no_rules() -> None:
    records, clock = CutRecords(), VirtualClock(asyncio.get_running_loop())
    access = AccessRecords(records, clock)
    await access.open()
    records.is_cut = True
    await pass_time(STALE_S - 5)
    access.rules()
    await pass_time(10)
    with pytest.raises(Unavailable, match="can't read the rules"):
        access.rules()
    records.is_cut = False
    await pass_time(2.0)
    access.rules()
    await access.close()
