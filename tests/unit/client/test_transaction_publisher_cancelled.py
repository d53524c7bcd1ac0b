"""TransactionContext: a cancellation while the service does not answer a commit or a question."""

import asyncio

import pytest

from broker.client import TransactionContext, Undoable
from broker.errors import NoLeader, OutcomeUnknown, TransactionConflict
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


class Waiting(Foreign):
    """Waits once in one of the calls that end a transaction, before its effect, until it is cancelled."""

    def __init__(self, name):
        super().__init__()
        self.waiting = asyncio.Event()
        self._name = name

    async def abort(self, transaction_id):
        await self._wait("abort")
        await super().abort(transaction_id)

    async def invalidate(self, transaction_id):
        await self._wait("invalidate")
        return await super().invalidate(transaction_id)

    async def _wait(self, name):
        if name == self._name and not self.waiting.is_set():
            self.waiting.set()
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
    with pytest.raises(asyncio.CancelledError) as raised:
        await aborting
    first = cause or raised.value
    assert raised.value.__cause__ is cause
    assert "unknown whether it is invalid" in " ".join(first.__notes__)
    assert context.state == "unknown"


class Told:
    """A participant which fails in one call, and waits in another until it is cancelled."""

    name = "told"

    def __init__(self, *, fails="", waits=""):
        self.waiting = asyncio.Event()
        self._fails, self._waits = fails, waits

    async def _call(self, name, result=True):
        if name == self._fails:
            raise Planned(name)
        if name == self._waits:
            self.waiting.set()
            await asyncio.Event().wait()
        return result

    async def start_tx(self, _):
        await self._call("start_tx")

    async def update_tx(self, _):
        await self._call("update_tx")

    async def changes(self):
        return await self._call("changes", ())

    async def commit_tx(self):
        return await self._call("commit_tx")

    async def post_commit(self):
        await self._call("post_commit")

    async def rollback_tx(self):
        return await self._call("rollback_tx")


class Planned(Exception):
    """The planned error of a call."""


async def raised_by(call, waiting):
    """Cancel a call once, when it waits. Return the cancellation that it raises."""
    calling = asyncio.create_task(call)
    await waiting.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await calling
    return raised.value


@pytest.mark.parametrize("call", ["finish", "checkpoint"])
@pytest.mark.parametrize("waits", ["rollback_tx", "abort", "invalidate"])
async def test_a_cancellation_while_changes_are_undone_is_raised(call, waits):
    service = Waiting(waits)
    first = Told(fails="commit_tx")
    second = Told(waits=waits) if waits == "rollback_tx" else Told()
    if waits == "invalidate":
        first.rollback_tx = lambda: False
    context = TransactionContext(service, [first, second])
    await context.start()
    waiting = second.waiting if waits == "rollback_tx" else service.waiting
    error = await raised_by(getattr(context, call)(), waiting)
    assert isinstance(error.__cause__, OutcomeUnknown | Planned)
    assert context.state == {"rollback_tx": "invalid", "abort": "aborted"}.get(waits, "unknown")


async def test_a_cancellation_while_a_failed_start_is_undone_is_raised():
    service = Waiting("abort")
    context = TransactionContext(service, [Told(fails="start_tx")])
    error = await raised_by(context.start(), service.waiting)
    assert isinstance(error.__cause__, Planned)
    assert context.state == "aborted"


async def test_a_cancellation_after_an_error_of_post_commit_is_raised():
    last = Told(waits="post_commit")
    context = TransactionContext(Foreign(), [Told(fails="post_commit"), last])
    await context.start()
    error = await raised_by(context.finish(), last.waiting)
    assert isinstance(error.__cause__, Planned)
    assert context.state == "committed"


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


async def test_a_cancellation_while_a_conflict_is_undone_ends_the_attempts(make_client):
    service, begun = Waiting("abort"), []

    def conflict(*_):
        raise TransactionConflict("another one changed it")

    async def work(tx):
        begun.append(tx)

    service.rules.can_commit = conflict
    async with make_client() as client:
        running = client.in_transaction(work, begin=lambda: client.transaction(service=service))
        error = await raised_by(running, service.waiting)
    assert isinstance(error.__cause__, TransactionConflict)
    assert [tx.state for tx in begun] == ["aborted"]


class Slow(Foreign):
    """Begins a transaction, and answers only once ``answers`` is set."""

    def __init__(self):
        super().__init__()
        self.began, self.answers = asyncio.Event(), asyncio.Event()

    async def start(self, **wanted):
        started = await super().start(**wanted)
        self.began.set()
        await self.answers.wait()
        return started


async def test_a_transaction_whose_start_is_cancelled_does_not_stay_open():
    """Left open, it would hold up its readers until its time-out."""
    service = Slow()
    context = TransactionContext(service)
    starting = asyncio.create_task(context.start())
    await service.began.wait()
    starting.cancel()
    await settle()
    service.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert context.state == "aborted"
    assert [call[0] if isinstance(call, tuple) else call for call in service.calls] == [
        "start",
        "abort",
    ]


async def test_a_second_cancellation_ends_the_wait_for_a_start():
    service = Slow()
    starting = asyncio.create_task(TransactionContext(service).start())
    await service.began.wait()
    for _ in range(2):
        starting.cancel()
        await settle()
    assert starting.cancelled()
