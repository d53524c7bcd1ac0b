"""TransactionContext: a cancellation while the service does not answer a commit or a question."""

import asyncio

import pytest

from broker.client import TransactionContext, Undoable
from broker.errors import NoLeader
from tests.kit.bench import settle
from tests.unit.client.stand_in import Foreign


class Hanging(Foreign):
    """Does not answer the named calls, and counts them."""

    def __init__(self, *names):
        super().__init__()
        self.hung = 0
        self.called = asyncio.Event()
        self._names = names

    async def commit(self, *_):
        await self._hang("commit")

    async def invalidate(self, transaction_id):
        raise NoLeader("not now")

    async def snapshot(self):
        await self._hang("snapshot")
        return self._call("snapshot")

    async def _hang(self, name):
        if name in self._names:
            self.hung += 1
            self.called.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("cause", [None, ValueError("the cause")])
async def test_a_cancellation_while_an_invalidation_is_checked_leaves_it_unknown(cause):
    service = Hanging("snapshot")
    unsure = Undoable(lambda: True, lambda: True)
    unsure.rollback_tx = lambda: False
    context = TransactionContext(service, [unsure])
    await context.start()
    aborting = asyncio.create_task(context.abort(cause))
    await service.called.wait()
    aborting.cancel()
    if cause is None:
        with pytest.raises(asyncio.CancelledError):
            await aborting
    else:
        await aborting
        notes = " ".join(cause.__notes__)
        assert "unknown whether it is invalid" in notes
        assert "CancelledError" in notes
    assert context.state == "unknown"


async def cancelled_to_its_end(finishing):
    """Cancel a task until it ends, and return how often."""
    for count in range(100):
        await settle()
        if finishing.done():
            return count
        finishing.cancel()
    raise AssertionError(f"100 cancellations did not end {finishing}")


@pytest.mark.parametrize("second", ["in a commit", "between two commits"])
async def test_a_second_cancellation_ends_the_attempts_to_learn_the_outcome_of_a_commit(second):
    """The service tells that the transaction is in progress, but answers no commit."""

    async def pause(_):
        if second == "between two commits":
            await asyncio.Event().wait()

    service = Hanging("commit")
    context = TransactionContext(service, pause=pause)
    await context.start()
    finishing = asyncio.create_task(context.finish())
    assert await cancelled_to_its_end(finishing) == 2
    assert finishing.cancelled()
    assert (context.state, service.hung) == ("unknown", 2 if second == "in a commit" else 1)
    assert service.calls.count("snapshot") == 1
