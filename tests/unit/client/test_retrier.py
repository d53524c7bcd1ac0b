import asyncio

import pytest

from broker.client import Client, Settings, SyncClient, protocol
from broker.client.retrier import SLOW_S, Retrier, Trouble
from broker.errors import OutcomeUnknown, Overloaded, TopicNotFound, Unavailable
from broker.model import Poll, PublishRequest, TopicId

TOPIC = TopicId("ns1", "t1")
KEYED = protocol.publish(TOPIC, PublishRequest(None, [b"a"]), key="k")
POLL = protocol.poll(TOPIC, Poll())
QUICK = Settings(retry_delay_min_s=0.0005, retry_delay_max_s=0.001, deadline_s=0.05)


def scripted(*outcomes):
    script = iter(outcomes)
    tried = []

    async def attempt(left_s):
        tried.append(left_s)
        outcome = next(script, outcomes[-1])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt, tried


async def test_the_first_success_is_the_answer():
    attempt, tried = scripted(Overloaded(""), Unavailable(""), "done")
    assert await Retrier(QUICK).run(KEYED, attempt) == "done"
    assert len(tried) == 3
    assert tried == sorted(tried, reverse=True)


async def test_a_final_refusal_ends_the_retries():
    attempt, tried = scripted(TopicNotFound(""))
    with pytest.raises(TopicNotFound):
        await Retrier(QUICK).run(KEYED, attempt)
    assert len(tried) == 1


async def test_a_refusal_after_an_unknown_outcome_does_not_make_it_known():
    attempt, _ = scripted(OutcomeUnknown("lost"), Overloaded("busy"))
    with pytest.raises(OutcomeUnknown, match="busy"):
        await Retrier(QUICK).run(KEYED, attempt)
    attempt, _ = scripted(OutcomeUnknown("lost"), TopicNotFound("gone"))
    with pytest.raises(OutcomeUnknown, match="gone"):
        await Retrier(QUICK).run(KEYED, attempt)


async def test_a_read_has_no_unknown_outcome():
    attempt, _ = scripted(OutcomeUnknown("garbled"), Overloaded("busy"))
    with pytest.raises(Overloaded):
        await Retrier(QUICK).run(POLL, attempt)


async def test_a_call_that_began_earlier_has_less_time():
    attempt, tried = scripted(Overloaded(""))
    ends = asyncio.get_running_loop().time() + QUICK.deadline_s / 4
    with pytest.raises(Overloaded):
        await Retrier(QUICK).run(KEYED, attempt, ends=ends)
    assert max(tried) <= QUICK.deadline_s / 4
    assert asyncio.get_running_loop().time() <= ends


async def test_a_repeatable_attempt_leaves_time_for_another():
    plain = protocol.publish(TOPIC, PublishRequest(None, [b"a"]))
    for request, share in ((KEYED, 0.5), (POLL, 0.5), (plain, 1.0)):
        attempt, tried = scripted("done")
        await Retrier(QUICK).run(request, attempt)
        assert tried == [pytest.approx(QUICK.deadline_s * share, rel=0.1)]


async def test_a_close_ends_the_waiting_at_once():
    retrier = Retrier(Settings(retry_delay_min_s=1000, retry_delay_max_s=1000, deadline_s=10_000))
    attempt, tried = scripted(Overloaded(""))
    task = asyncio.create_task(retrier.run(KEYED, attempt))
    asyncio.get_running_loop().call_soon(retrier.close)  # After the task's first step.
    with pytest.raises(Overloaded):
        await asyncio.wait_for(task, 5)
    assert len(tried) == 2


@pytest.mark.parametrize("error", [ValueError("\ud800"), GeneratorExit(), asyncio.CancelledError()])
async def test_an_error_of_on_trouble_changes_nothing(error):
    def on_trouble(_):
        raise error

    attempt, _ = scripted(Overloaded("busy"), "done")
    assert await Retrier(QUICK, on_trouble=on_trouble).run(KEYED, attempt) == "done"


async def test_each_failed_attempt_is_reported_with_the_time_left():
    told = []
    busy = Overloaded("busy")
    attempt, _ = scripted(busy, busy, "done")
    assert await Retrier(QUICK, on_trouble=told.append).run(KEYED, attempt) == "done"
    assert [trouble.error for trouble in told] == [busy, busy]
    assert all(0 < trouble.left_s <= QUICK.deadline_s for trouble in told)


async def test_a_final_refusal_is_not_reported_as_trouble():
    told = []
    attempt, _ = scripted(TopicNotFound(""))
    with pytest.raises(TopicNotFound):
        await Retrier(QUICK, on_trouble=told.append).run(KEYED, attempt)
    assert told == []


@pytest.mark.parametrize("waits_s", [0, 20])
async def test_a_slow_attempt_is_reported_with_the_time_left(waits_s):
    telling = asyncio.get_running_loop().create_future()

    async def attempt(_):
        return await telling

    retrier = Retrier(Settings(deadline_s=60), on_trouble=telling.set_result)
    told = await retrier.run(POLL, attempt, waits_s=waits_s)
    assert told == Trouble(None, pytest.approx(60 - waits_s - SLOW_S))


async def test_a_requested_wait_is_not_reported_as_trouble():
    told = []
    loop = asyncio.get_running_loop()

    async def attempt(_):
        done = loop.create_future()
        loop.call_later(SLOW_S * 1.2, done.set_result, "done")
        return await done

    assert await Retrier(Settings(), on_trouble=told.append).run(POLL, attempt, waits_s=60)
    assert told == []


async def test_a_closed_client_reports_no_trouble() -> None:
    told: list[Trouble] = []
    retrier = Retrier(QUICK, on_trouble=told.append)
    retrier.tell(Unavailable("lost"), None)
    retrier.close()
    retrier.tell(Unavailable("closed"), None)
    assert [str(trouble.error) for trouble in told] == ["lost"]


async def awaited(_):
    """An asynchronous function, which no call awaits."""


def yields(_):
    yield


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize("wrong", ["log", lambda: None, awaited, yields])
def test_a_listener_of_the_wrong_shape_is_refused_when_the_client_is_made(make, wrong):
    with pytest.raises(TypeError, match="on_trouble"):
        make("http://127.0.0.1:1", on_trouble=wrong)


@pytest.mark.parametrize("wrong", [None, lambda: None, yields])
async def test_work_of_the_wrong_shape_begins_no_transaction(wrong):
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="work"):
            await client.in_transaction(wrong)
    for each in wrong, awaited:
        with SyncClient("http://127.0.0.1:1") as blocking, pytest.raises(TypeError, match="work"):
            blocking.in_transaction(each)
