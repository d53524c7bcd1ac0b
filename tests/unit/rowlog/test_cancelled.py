"""Errors of cancellation that come from a listener or from the table, and not from the owner of a task."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.rowlog import Message, Subscription
from broker.rowlog.candidacy import LOOK_S
from broker.rowlog.listeners import NoListener
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import ROW, TABLE, Heard, World, until, virtual


class Awaiting:
    """A listener that awaits a cancelled task at its first call."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, message: Message) -> None:
        del message
        self.calls += 1
        if self.calls == 1:
            lost = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost


@virtual
async def test_a_listener_that_awaits_a_cancelled_task_has_failed_once(world: World) -> None:
    log = await world.log("a", "b")
    awaiting, heard = Awaiting(), Heard()
    log.listen("a", awaiting)
    log.listen("b", heard)
    await log.start()
    first = await log.put(ROW)
    assert first is not None
    await until(lambda: log.is_done(first, "a"))
    assert awaiting.calls == 2
    assert log.figures.values["retries", "a"] == 1
    await log.put(b"other")
    await until(lambda: [each.row for each in heard.messages] == [ROW, b"other"])


@virtual
async def test_a_candidacy_that_an_error_of_cancellation_ended_begins_again(world: World) -> None:
    process = await world.process()
    log, heard = process.log, Heard()
    await log.subscribe(Subscription("a"))
    log.listen("a", heard)
    await log.start()
    await until(lambda: log.figures.values["leads", ""] == 1)

    def once(name: str, table: bytes) -> None:
        if (name, table) == ("check_and_put", TABLE):
            process.on_step = None
            raise asyncio.CancelledError

    process.on_step = once
    with capture_logs() as told:
        await log.put(ROW)
        await until(lambda: heard.seqs == [1], within_s=2 * LOOK_S)
    assert ("error", "rowlog candidacy ended") in {
        (each["log_level"], each["event"]) for each in told
    }


class OwnEnd(BaseException):
    """An end of user code that is no Exception."""


async def cancels_itself(message: Message) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def tells_too_much(message: Message) -> Any:
    return "done"


def raising(error: BaseException) -> Any:
    async def listener(message: Message) -> None:
        raise error

    return listener


ENDS = {
    "BaseException": raising(OwnEnd()),
    "GeneratorExit": raising(GeneratorExit()),
    "StopIteration": raising(StopIteration()),
    "CancelledError": raising(asyncio.CancelledError()),
    "lone surrogate": raising(ValueError("\ud800" * 200)),
    "NoListener": raising(NoListener("its own")),
    "cancels its own task": cancels_itself,
    "a wrong value": tells_too_much,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("by_call", [True, False], ids=["process", "processor"])
def test_any_end_of_a_listener_is_one_failed_try(end: Any, *, by_call: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        log = await world.log(Subscription("bad", max_tries=2), "good")
        heard = Heard()
        log.listen("bad", end)
        log.listen("good", heard)
        if not by_call:
            await log.start()
        for row in (ROW, b"other"):
            message = await log.put(row)
            assert message is not None
            if by_call:
                while not await log.process(message) and not await log.dead("bad"):
                    await pass_time(60)
        await until(lambda: {each.row for each in heard.messages} == {ROW, b"other"})
        await until(lambda: by_call or log.figures.values["dead", "bad"] == 2)
        letter = (await log.dead("bad"))[0]
        assert letter.tries == 2
        assert letter.reason.encode()

    test()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_the_program_gives_the_claim_back(error: BaseException) -> None:
    @virtual
    async def test(world: World) -> None:
        log = await world.log("a")
        log.listen("a", raising(error))
        message = await log.put(ROW)
        assert message is not None
        raised = None
        try:
            await log.process(message)
        except BaseException as ended:  # noqa: BLE001 - It would end the loop of this test.
            raised = ended
        assert raised is error
        (found,) = await log.messages.open(ROW)
        assert not found.state.parts["a"].token
        assert found.state.parts["a"].tries == 0

    test()


@virtual
async def test_a_listener_of_the_wrong_shape_is_refused_at_the_start(world: World) -> None:
    log = await world.log("a")
    for wrong in (None, lambda: None, lambda message, more: None):
        with pytest.raises(TypeError, match="A listener"):
            log.listen("a", wrong)  # type: ignore[arg-type]
