"""Errors of cancellation that come from a listener or from the table, and not from the owner of a task."""

import asyncio

from structlog.testing import capture_logs

from broker.rowlog import Message, Subscription
from broker.rowlog.candidacy import LOOK_S
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
