"""A call of the transaction service ends at its deadline, wherever it waits for the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from broker.errors import BrokerError, NoLeader, OutcomeUnknown, Unavailable
from broker.transactions.service import Transactions
from tests.kit.bench import Bench, Gate


@pytest.fixture
async def service(bench: Bench) -> AsyncIterator[Transactions]:
    made = Transactions(bench.topics.leaders)
    yield made
    await made.close()


async def fails_in_time(
    bench: Bench,
    call: Callable[[float], Awaitable[object]],
    error: type[BrokerError] | tuple[type[BrokerError], ...],
) -> None:
    begun = bench.clock.monotonic()
    with pytest.raises(error):
        await call(begun + 1.5)
    assert 1.4 < bench.clock.monotonic() - begun < 1.7


async def test_an_edit_in_flight_is_unknown_at_the_deadline_and_goes_on(
    bench: Bench, service: Transactions
) -> None:
    begun = (await service.start()).transaction_id
    append = Gate()
    bench.table.on("append", append.before)
    await fails_in_time(bench, lambda at: service.commit(begun, deadline=at), OutcomeUnknown)
    reading = asyncio.ensure_future(service.snapshot())
    # The answer to a read depends on the edit in flight.
    await fails_in_time(bench, service.snapshot, Unavailable)
    append.open()
    assert (await reading).is_visible(begun)


async def test_a_claim_or_a_replay_that_hangs_is_refused_at_the_deadline(
    bench: Bench, service: Transactions
) -> None:
    await service.start()
    bench.restart()
    other = Transactions(bench.topics.leaders)
    claim = Gate()
    bench.table.on("get", claim.before)
    bench.table.on("cells", claim.before)
    await fails_in_time(bench, other.snapshot, (NoLeader, Unavailable))
    claim.open()
    await other.start()
    await other.close()
