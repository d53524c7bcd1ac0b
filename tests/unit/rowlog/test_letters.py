"""Dead letters and held messages, and the entries of messages that open again."""

import pytest

from broker.errors import NotFound
from broker.rowlog import RowLog, Subscription
from broker.rowlog.cells import encode_state
from broker.rowlog.execution_state import DONE
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import ROW, TABLE, Heard, World, until, virtual

ORDERED = {"respect_order": True}


async def with_a_held_message(world: World) -> tuple[RowLog, Heard]:
    """Return a log whose message is dead for "first" and held for "second", and the listener of "second"."""
    log = await world.log(
        Subscription("first", order=1, max_tries=1),
        Subscription("second", order=2),
        settings=ORDERED,
    )
    second = Heard()
    log.listen("first", Heard(False))
    log.listen("second", second)
    await log.start()
    await log.put(ROW, data=b"d")
    await until(lambda: log.figures.values["dead", "first"] == 1)
    await pass_time(10)
    assert [each.held for each in await log.dead("second")] == [True]
    return log, second


@virtual
async def test_a_message_is_held_no_more_once_the_earlier_subscription_is_removed(
    world: World,
) -> None:
    log, second = await with_a_held_message(world)
    assert await log.unsubscribe("first") == 1
    await until(lambda: second.seqs == [1], within_s=2)
    assert second.messages[0].data == b"d"
    await until(lambda: not world.cells())
    await pass_time(10)
    assert (await log.dead("second"), world.entries()) == ([], [])


async def strand(log: RowLog, world: World) -> None:
    """Remove "first" as earlier releases did: the message stays held."""
    (found,) = await log.messages.open(ROW)
    await log.meta.change(lambda setup: setup.without_subscription("first"))
    (column,) = [each for each, value in world.cells().items() if value == found.raw]
    world.stored[TABLE][ROW][column] = encode_state(found.state.with_part("first", DONE))


@virtual
async def test_a_sweep_opens_what_nothing_holds_any_more(world: World) -> None:
    log, second = await with_a_held_message(world)
    await strand(log, world)
    assert (await log.verify()).held == 1
    assert second.seqs == []
    report = await log.verify(mend=True)
    assert (report.held, report.is_sound) == (1, False)
    await until(lambda: second.seqs == [1], within_s=2)


@pytest.mark.parametrize("is_revived", [True, False], ids=["revived", "dropped"])
def test_a_letter_that_nothing_holds_any_more_can_be_revived_and_dropped(is_revived: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        log, second = await with_a_held_message(world)
        (letter,) = await log.dead("second")
        await strand(log, world)
        await (log.revive if is_revived else log.drop)(letter)
        await until(lambda: not world.cells())
        assert second.seqs == ([1] if is_revived else [])
        with pytest.raises(NotFound):
            await log.drop(letter)

    test()
