"""TransactionContext: the order of its calls when any of them fails, and its end after lost answers."""

import asyncio
import itertools

import pytest

from broker.client import (
    OutcomeUnknown,
    ParticipantFailed,
    Snapshot,
    TransactionConflict,
    TransactionContext,
    TransactionNotInProgress,
    Unavailable,
    Undoable,
)
from broker.client.transaction_fate import TransactionFate, fate
from tests.unit.client.stand_in import Foreign

PLAIN, FAILS, SAYS_NO = "plain", "fails", "says no"
NAMES = ("a", "b", "last")


class Planned(Exception):
    """The planned error of a call; its text names the call."""


class Scripted(Foreign):
    """A service that fails where its plan says so, and records its calls."""

    def __init__(self, plan, trace):
        super().__init__()
        self.plan, self.trace = plan, trace

    def _call(self, name, *arguments):
        self.trace.append(name)
        if name in self.plan and name != "commit":
            raise Planned(name)
        if self.plan.get(name) == FAILS:
            raise TransactionConflict(name)
        if name == "commit" and self.plan.get(name) == "lost":
            super()._call(name, *arguments)
            raise Planned(name)
        return super()._call(name, *arguments)


async def an_iteration():
    """Let the loop run its other tasks once."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future


class Participant:
    """A participant that fails where its plan says so, and records its calls."""

    def __init__(self, name, plan, trace):
        self.name, self.plan, self.trace = name, plan, trace

    def _call(self, call, result=None):
        label = f"{self.name}.{call}"
        self.trace.append(label)
        found = self.plan.get(label)
        if found == FAILS:
            raise Planned(label)
        return False if found == SAYS_NO else result

    def start_tx(self, transaction):
        return self._call("start_tx")

    def update_tx(self, transaction):
        return self._call("update_tx")

    def changes(self):
        return self._call("changes", {self.name.encode()})

    def commit_tx(self):
        return self._call("commit_tx", True)

    def post_commit(self):
        return self._call("post_commit")

    def rollback_tx(self):
        return self._call("rollback_tx", True)


class AsyncParticipant(Participant):
    async def start_tx(self, transaction):
        await an_iteration()
        return super().start_tx(transaction)

    async def commit_tx(self):
        await an_iteration()
        return super().commit_tx()

    async def post_commit(self):
        return super().post_commit()

    async def rollback_tx(self):
        return super().rollback_tx()


class Ended(Exception):
    """Ends the model's calls; ``args`` holds the label of the failed call."""


class Model:
    """The order of the calls of Tephra's TransactionContext; it shares no code with the product."""

    def __init__(self, plan):
        self.plan, self.trace, self.state, self.error = plan, [], "new", None

    def call(self, label):
        """Record a call, and return True if it succeeds."""
        self.trace.append(label)
        return label not in self.plan

    def each(self, call):
        for name in NAMES:
            if not self.call(f"{name}.{call}"):
                raise Ended(f"{name}.{call}")

    def must(self, label):
        if not self.call(label):
            raise Ended(label)

    def run(self, checkpoint):
        try:
            self.must("start")
        except Ended as ended:
            self.error = ended.args[0]
            return
        self.state = "in_progress"
        try:
            self.each("start_tx")
        except Ended as ended:
            self.error, self.state = ended.args[0], "aborted"
            self.call("abort")
            return
        try:
            if checkpoint:
                self.each("commit_tx")
                self.must("checkpoint")
                self.each("update_tx")
            self.each("changes")
            self.must("can_commit")
            self.each("commit_tx")
            self.commit()
        except Ended as ended:
            self.error = ended.args[0]
            if self.state == "in_progress":
                self.abort()
            return
        self.state = "committed"
        failed = [name for name in NAMES if not self.call(f"{name}.post_commit")]
        if failed:
            self.error = f"{failed[0]}.post_commit"

    def commit(self):
        if self.call("commit"):
            return
        if self.plan["commit"] == FAILS:
            raise Ended("commit")
        if not self.ask():
            self.state = "unknown"
            raise Ended("unknown")

    def ask(self):
        """Ask for the fate of the transaction, four times if there is no answer."""
        answered = self.call("snapshot")
        self.trace += [] if answered else ["snapshot"] * 3
        return answered

    def abort(self):
        undone = [self.call(f"{name}.rollback_tx") for name in NAMES]
        if all(undone):
            self.state = "aborted"
            self.call("abort")
        elif self.call("invalidate"):
            self.state = "invalid"
        else:
            self.ask()
            self.state = "unknown"


async def quickly(seconds):
    await an_iteration()


async def run(plan, *, checkpoint):
    """Run a transaction by a plan, and return its calls, its context and its error."""
    trace = []
    kinds = (Participant, AsyncParticipant, Participant)
    made = [kind(name, plan, trace) for kind, name in zip(kinds, NAMES, strict=True)]
    service = Scripted(plan, trace)
    context = TransactionContext(service, made[:1], last=made[2], pause=quickly)
    await context.add(made[1])
    error = None
    try:
        await context.start()
        if checkpoint:
            await context.checkpoint()
        await context.finish()
    except Exception as raised:  # noqa: BLE001 - The test checks it.
        error = raised
    return trace, context, error


BOOLEAN = ("commit_tx", "rollback_tx")
CALLS = ["start_tx", "changes", "commit_tx", "update_tx", "post_commit", "rollback_tx"]
PLANS = [
    *[{f"{name}.{call}": FAILS} for name in NAMES for call in CALLS],
    *[{f"{name}.{call}": SAYS_NO} for name in NAMES for call in BOOLEAN],
    *[{call: FAILS} for call in ("start", "can_commit", "commit", "abort", "invalidate")],
    *[{call: FAILS} for call in ("checkpoint", "snapshot")],
    {"commit": "lost"},
]


def plans():
    """Yield plans without a failure, and with every one, two and three of the failures."""
    for count in range(4):
        for chosen in itertools.combinations(PLANS, count):
            plan = {label: how for one in chosen for label, how in one.items()}
            if len(plan) == count:
                yield plan


@pytest.mark.slow
def test_the_order_of_calls_is_tephras_whichever_call_fails():
    async def all_of_them():
        count = 0
        for plan in plans():
            for checkpoint in (False, True):
                model = Model(plan)
                model.run(checkpoint)
                trace, context, error = await run(plan, checkpoint=checkpoint)
                told = (plan, checkpoint, trace, model.trace)
                assert trace == model.trace, told
                assert context.state == model.state, told
                assert (error is None) == (model.error is None), (told, error)
                check_error(error, model, told)
                count += 1
        return count

    assert asyncio.run(all_of_them()) > 5000


def check_error(error, model, told):
    """Check that the first error is raised, and that its notes name the others."""
    if error is None:
        return
    if model.state == "unknown":
        assert isinstance(error, OutcomeUnknown | Planned | ParticipantFailed), told
        whole = repr((error, getattr(error, "__notes__", ()), error.__cause__))
        assert "unknown" in whole, (told, whole)
        return
    name = model.error.partition(".")[0]
    if model.plan.get(model.error) == SAYS_NO:
        assert isinstance(error, ParticipantFailed), told
        assert name in str(error)
    elif model.error == "commit":
        assert isinstance(error, TransactionConflict), told
    else:
        assert isinstance(error, Planned), told
        assert str(error) == model.error, told
    notes = " ".join(getattr(error, "__notes__", ()))
    for label in set(model.trace) & set(model.plan) - {model.error, "snapshot"}:
        if model.plan[label] == FAILS and label != "invalidate":
            assert label in notes, (told, notes)


# --- Lost answers ---------------------------------------------------------------------------------


class Publisher(Participant):
    """The last participant; ``sure`` is True if each of its publishes has a known outcome."""

    def __init__(self, *, sure=True):
        super().__init__("last", {}, [])
        self._sure = sure

    def changes(self):
        return ()

    def rollback_tx(self):
        super().rollback_tx()
        return self._sure


async def begun(service, *, sure=True):
    publisher = Publisher(sure=sure)
    context = TransactionContext(service, last=publisher, pause=quickly)
    await context.start()
    return context, publisher


@pytest.mark.parametrize("cut", [["before"], ["after"], ["before", "after"], ["before"] * 9])
async def test_a_commit_without_an_answer_is_settled_by_a_snapshot(cut):
    service = Foreign()
    service.cut["commit"] = cut.copy()
    context, publisher = await begun(service)
    await context.finish()
    assert context.state == "committed"
    assert len(service.rules.committed) == 1
    assert "last.rollback_tx" not in publisher.trace
    assert service.rules.aborted == []


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_without_a_snapshot_after_a_lost_commit_nothing_is_undone(cut):
    service = Foreign()
    service.cut["commit"] = [cut]
    service.cut["snapshot"] = ["before"] * 4
    context, publisher = await begun(service)
    with pytest.raises(OutcomeUnknown, match="Nothing was undone"):
        await context.finish()
    assert context.state == "unknown"
    assert "last.rollback_tx" not in publisher.trace
    assert {"abort", "invalidate"}.isdisjoint(service.calls)


async def test_a_commit_that_was_lost_and_came_too_late_is_rolled_back():
    service = Foreign()
    context, publisher = await begun(service)
    service.cut["commit"] = ["before"]
    invalidated = service.rules.invalidate
    service.rules.can_commit = lambda pointer, changes: invalidated(pointer)
    with pytest.raises(TransactionNotInProgress, match="invalid"):
        await context.finish()
    assert "last.rollback_tx" in publisher.trace
    assert context.state == "aborted"


async def test_not_in_progress_after_an_unknown_commit_is_no_refusal():
    """The first commit arrives after the snapshot, so the service refuses the second commit of the same transaction."""
    service = Foreign()
    context, publisher = await begun(service)
    pointer = context.transaction.transaction_id
    service.cut["commit"] = ["before"]
    seen = service.rules.snapshot

    def late():
        told = seen()
        if pointer in service.rules.in_progress:
            service.rules.commit(pointer)
        return told

    service.rules.snapshot = late
    await context.finish()
    assert service.calls == ["start", "can_commit", "commit", "snapshot", "commit", "snapshot"]
    assert (context.state, "last.rollback_tx" in publisher.trace) == ("committed", False)


@pytest.mark.parametrize("timed_out", [False, True])
async def test_not_in_progress_is_checked_by_a_snapshot(timed_out):
    """A proxy sent the commit twice, or the transaction timed out."""
    service = Foreign()
    context, publisher = await begun(service)
    pointer = context.transaction.transaction_id
    end = service.rules.invalidate if timed_out else service.rules.commit
    commit = service.rules.commit

    def twice(*arguments):
        end(pointer)
        commit(*arguments)

    service.rules.commit = twice
    if timed_out:
        with pytest.raises(TransactionNotInProgress):
            await context.finish()
    else:
        await context.finish()
    assert context.state == ("aborted" if timed_out else "committed")
    assert ("last.rollback_tx" in publisher.trace) is timed_out


async def test_a_pointer_that_the_service_does_not_know_is_not_committed():
    service = Foreign()
    context, _ = await begun(service)
    service.cut["commit"] = ["before"]
    service.rules.snapshot = lambda: Snapshot(transaction_id=0, read_pointer=1000)
    with pytest.raises(OutcomeUnknown):
        await context.finish()
    assert context.state == "unknown"


def test_the_fate_of_a_transaction_by_a_snapshot():
    seen = Snapshot(transaction_id=0, read_pointer=10, in_progress=[5, 12], invalids=[7, 13])
    fates = {pointer: fate(seen, {pointer}) for pointer in (4, 5, 7, 10, 11, 12, 13)}
    assert fates == {
        4: TransactionFate.COMMITTED,
        5: TransactionFate.IN_PROGRESS,
        7: TransactionFate.INVALID,
        10: TransactionFate.COMMITTED,
        11: TransactionFate.UNKNOWN,
        12: TransactionFate.IN_PROGRESS,
        13: TransactionFate.INVALID,
    }
    assert fate(seen, {4, 5}) is TransactionFate.IN_PROGRESS
    assert fate(seen, {4, 7}) is TransactionFate.INVALID
    assert fate(seen, {4, 11}) is TransactionFate.UNKNOWN


async def test_an_uncertain_rollback_invalidates_and_never_aborts():
    service = Foreign()
    context, _ = await begun(service, sure=False)
    await context.abort()
    assert context.state == "invalid"
    assert service.rules.aborted == []
    assert service.rules.invalids == {context.transaction.transaction_id}


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_an_invalidation_without_an_answer_is_checked_by_a_snapshot(cut):
    service = Foreign()
    service.cut["invalidate"] = [cut]
    context, _ = await begun(service, sure=False)
    if cut == "after":
        await context.abort()
        assert context.state == "invalid"
        return
    with pytest.raises(OutcomeUnknown, match="unknown whether it is invalid") as raised:
        await context.abort(Unavailable("the cause"))
    assert "the cause" in str(raised.value)
    assert (context.state, service.rules.aborted) == ("unknown", [])


async def test_a_commit_that_is_refused_for_now_is_rolled_back():
    service = Foreign()
    context, publisher = await begun(service)

    def refuse(*_):
        raise Unavailable("not now")

    service.rules.commit = refuse
    with pytest.raises(Unavailable):
        await context.finish()
    assert (context.state, publisher.trace[-1]) == ("aborted", "last.rollback_tx")


# --- Cancellation ---------------------------------------------------------------------------------


class Slow(Foreign):
    """Stops in one call, before or after its effect, until the call is cancelled."""

    def __init__(self, name, *, after):
        super().__init__()
        self.stopped = asyncio.Event()
        self._name, self._after = name, after

    async def commit(self, transaction_id, write_pointer=None):
        await self._stop("commit", transaction_id, write_pointer)

    async def can_commit(self, transaction_id, changes):
        await self._stop("can_commit", transaction_id, changes)

    async def _stop(self, name, *arguments):
        if name == self._name and not self.stopped.is_set():
            if self._after:
                self._call(name, *arguments)
            self.stopped.set()
            await asyncio.Event().wait()
        self._call(name, *arguments)


@pytest.mark.parametrize("after", [False, True])
async def test_a_cancelled_commit_is_settled_by_a_snapshot(after):
    service = Slow("commit", after=after)
    context, publisher = await begun(service)
    finishing = asyncio.create_task(context.finish())
    await service.stopped.wait()
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert context.state == "committed"
    assert publisher.trace[-1] == "last.post_commit"


async def test_a_second_cancellation_ends_the_check():
    service = Slow("commit", after=True)
    context, publisher = await begun(service)
    asked = asyncio.Event()

    async def asking():
        asked.set()
        await asyncio.Event().wait()

    service.snapshot = asking
    finishing = asyncio.create_task(context.finish())
    await service.stopped.wait()
    finishing.cancel()
    await asked.wait()
    asked.clear()
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert (context.state, publisher.trace[-1]) == ("unknown", "last.commit_tx")


async def test_a_cancellation_before_the_commit_rolls_back():
    service = Slow("can_commit", after=True)
    context, publisher = await begun(service)
    finishing = asyncio.create_task(context.finish())
    await service.stopped.wait()
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert (context.state, publisher.trace[-1]) == ("aborted", "last.rollback_tx")


# --- Participants ---------------------------------------------------------------------------------


async def test_a_late_participant_starts_at_once_and_commits_before_the_last():
    trace = []
    context = TransactionContext(Foreign(), last=Participant("last", {}, trace))
    await context.start()
    late = Participant("late", {}, trace)
    await context.add(late)
    await context.add(late)
    with pytest.raises(ValueError, match="removed during"):
        context.remove(late)
    await context.finish()
    committed = [label for label in trace if label.endswith("commit_tx")]
    assert committed == ["late.commit_tx", "last.commit_tx"]
    assert trace.count("late.start_tx") == 1
    context.remove(late)
    await context.start()
    assert context.participants[0].name == "last"
    with pytest.raises(ValueError, match="already"):
        await context.start()


async def test_without_a_transaction_an_abort_does_nothing_and_a_commit_is_refused():
    service = Foreign()
    context = TransactionContext(service)
    await context.abort()
    with pytest.raises(TransactionNotInProgress):
        await context.finish()
    assert service.calls == []


@pytest.mark.parametrize("fails", ["", "do", "do says no", "undo", "undo says no"])
async def test_a_pair_of_callables_takes_part(fails):
    done = []

    def do():
        done.append("do")
        if fails == "do":
            raise Planned
        return fails != "do says no"

    async def undo():
        done.append("undo")
        if fails == "undo":
            raise Planned
        return fails != "undo says no"

    service = Foreign()
    context = TransactionContext(service, [Undoable(do, undo, name="ledger", changes=[b"k"])])
    await context.start()
    if not fails:
        await context.finish()
        assert (done, service.rules.committed[0][1]) == (["do"], {b"k"})
        return

    def refuse(*_):
        raise TransactionConflict("no")

    service.rules.commit = refuse
    with pytest.raises((Planned, ParticipantFailed, TransactionConflict)):
        await context.finish()
    assert done == ["do", "undo"]
    left = fails.startswith("undo")
    assert (context.state, context.left) == (("invalid", ["ledger"]) if left else ("aborted", []))


class OwnEnd(BaseException):
    """An end of user code that is no Exception."""


async def cancels_itself():
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await an_iteration()


def raising(error):
    async def end():
        raise error

    return end


ENDS = {
    "CancelledError": raising(asyncio.CancelledError()),
    "GeneratorExit": raising(GeneratorExit()),
    "BaseException": raising(OwnEnd()),
    "cancels its own task": cancels_itself,
    "SystemExit": raising(SystemExit(3)),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
}


class Ending(AsyncParticipant):
    """A participant whose call ends in another way than by an Exception."""

    def __init__(self, call, end, trace):
        super().__init__("ending", {}, trace)
        self.ends_in, self.end = call, end

    async def commit_tx(self):
        await (self.end() if self.ends_in == "commit_tx" else an_iteration())
        return await super().commit_tx()

    async def post_commit(self):
        await (self.end() if self.ends_in == "post_commit" else an_iteration())

    async def rollback_tx(self):
        await (self.end() if self.ends_in == "rollback_tx" else an_iteration())
        return await super().rollback_tx()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(
    ("call", "state"),
    [("commit_tx", "aborted"), ("post_commit", "committed"), ("rollback_tx", "invalid")],
)
async def test_any_end_of_a_participant_is_its_failure(call, state, end):
    """The others are asked as after any error, and only a real cancellation is one."""
    trace = []
    others = [Participant(name, {}, trace) for name in ("a", "b")]
    context = TransactionContext(
        Scripted({}, trace), [others[0], Ending(call, end, trace), others[1]]
    )
    await context.start()
    raised = None
    try:
        await (context.abort() if call == "rollback_tx" else context.finish())
    except BaseException as error:  # noqa: BLE001 - It may be the end of the program.
        raised = error
    assert raised is not None
    ends = isinstance(raised.__cause__ or raised, SystemExit | KeyboardInterrupt)
    assert isinstance(raised, RuntimeError | OutcomeUnknown) or ends
    assert context.state == state
    last = "post_commit" if call == "post_commit" else "rollback_tx"
    assert f"b.{last}" in trace


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


class NoTruth:
    def __bool__(self):
        raise ValueError("neither true nor false")


class Hostile(AsyncParticipant):
    """A participant whose name, errors and results raise errors of their own."""

    def __init__(self, trace, mode):
        self.trace, self.mode = trace, mode

    @property
    def name(self):
        if self.mode == "name":
            raise ValueError("no name")
        return "hostile"

    def _call(self, call, result=None):
        self.trace.append(f"hostile.{call}")
        return result

    async def commit_tx(self):
        raise Unprintable if self.mode == "text" else Planned("hostile.commit_tx")

    def changes(self):
        return set()

    async def post_commit(self):
        raise Unprintable

    async def rollback_tx(self):
        await super().rollback_tx()
        if self.mode == "text":
            raise Unprintable
        return NoTruth() if self.mode == "truth" else False


@pytest.mark.parametrize("mode", ["name", "text", "truth"])
async def test_no_name_text_or_result_of_a_participant_hinders_the_end(mode):
    trace = []
    awares = [Participant("a", {}, trace), Hostile(trace, mode), Participant("b", {}, trace)]
    context = TransactionContext(Scripted({"invalidate": FAILS, "snapshot": FAILS}, trace), awares)
    await context.start()
    with pytest.raises(Unprintable if mode == "text" else Planned):
        await context.finish()
    assert context.state == "unknown"
    assert context.left == ["Hostile" if mode == "name" else "hostile"]
    assert trace.index("b.rollback_tx") < trace.index("invalidate")


async def test_the_outcome_of_a_decision_is_unknown_whatever_its_error_says():
    class Decider(AsyncParticipant):
        async def decide_tx(self, transaction, published):
            raise Unprintable

        def changes(self):
            return set()

    context = TransactionContext(Scripted({}, []), [Decider("d", {}, [])])
    await context.start()
    with pytest.raises(OutcomeUnknown, match="Unprintable"):
        await context.finish()
    assert context.state == "unknown"


async def test_all_participants_are_told_of_a_commit_whatever_one_of_them_raises():
    trace = []
    hostile = Hostile(trace, "name")
    hostile.commit_tx = lambda: True
    context = TransactionContext(Scripted({}, trace), [hostile, Participant("b", {}, trace)])
    await context.start()
    with pytest.raises(Unprintable):
        await context.finish()
    assert (context.state, trace[-1]) == ("committed", "b.post_commit")


@pytest.mark.parametrize("method", ["start", "can_commit", "commit"])
async def test_a_service_that_raises_a_cancellation_of_its_own_has_failed(method):
    """Only the caller's own cancellation is one: the service's is an error, of unknown outcome."""
    trace = []

    class Cancelling(Scripted):
        def _call(self, name, *arguments):
            if name == method:
                raise asyncio.CancelledError
            return super()._call(name, *arguments)

    context = TransactionContext(
        Cancelling({}, trace), [Participant("a", {}, trace)], pause=quickly
    )

    async def run():
        await context.start()
        await context.finish()

    with pytest.raises((RuntimeError, OutcomeUnknown)):
        await run()
    assert context.state == {"start": "new", "can_commit": "aborted", "commit": "unknown"}[method]
