import asyncio
import json
from contextlib import aclosing, asynccontextmanager

import pytest

from broker.client import Settings, TailOptions
from broker.client import tail as tails
from broker.client.client_request import Reply
from broker.client.retrier import Retrier
from broker.client.transport import StreamedReply
from broker.errors import TopicNotFound, Unavailable
from broker.model import Message, TopicId, log_key
from broker.wire import avro
from tests.kit import poll_replies
from tests.kit.request_bodies import read_poll

EMPTY = [b"\x00"]
QUICK = TailOptions(wait_s=0.01, idle_delay_s=0.0, page_messages_max=3)


def message(number):
    return Message(log_key(1000 + number, 0) + bytes(10), b"%d" % number)


def block(*numbers):
    return poll_replies.page_of([message(number) for number in numbers])


def starts(transport):
    return [read_poll(avro, request.body).start for request in transport.requests]


async def take(tail, count):
    found = []
    async with aclosing(tail), asyncio.timeout(5):
        async for received in tail:
            found.append(received)
            if len(found) == count:
                break
    return found


async def test_a_tail_goes_on_after_the_last_message(make_client, transport):
    answers = iter([[block(0, 1, 2), b"\x00"], [block(3), b"\x00"], EMPTY, [block(4) + b"\x00"]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        found = await take(client.tail("ns1/t1", options=QUICK), 5)
    assert found == [message(number) for number in range(5)]
    expected = [None, message(2).id, message(3).id, message(3).id]
    assert starts(transport) == expected
    first, second = (read_poll(avro, request.body) for request in transport.requests[:2])
    assert (first.limit, first.inclusive, second.inclusive) == (3, True, False)
    assert transport.requests[0].path.endswith("?wait=0.01")


async def test_an_answer_that_is_cut_off_is_resumed_and_never_taken_for_the_end(
    make_client, transport
):
    answers = iter(
        [
            [block(0, 1) + block(2)[:-10]],
            [block(2), Unavailable("lost")],
            Unavailable("down"),
            [block(3), b"\x00"],
        ]
    )
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        found = await take(client.tail("ns1/t1", options=QUICK), 4)
    assert found == [message(number) for number in range(4)]
    assert starts(transport) == [None, message(1).id, message(2).id, message(2).id]


async def test_a_tail_does_not_give_up_while_cut_answers_bring_messages(make_client, transport):
    lost = Unavailable("lost")
    answers = iter([*([block(number), lost] for number in range(9)), [b"\x00"]])
    transport.answer = lambda _: next(answers)
    options = TailOptions(follow=False, give_up_after_s=0.002)
    async with make_client() as client:
        began = asyncio.get_running_loop().time()
        found = [m async for m in client.tail("ns1/t1", options=options)]
    assert found == [message(number) for number in range(9)]
    assert asyncio.get_running_loop().time() - began > 0.002


async def test_a_tail_without_following_ends_when_it_has_caught_up(make_client, transport):
    answers = iter([[block(0), b"\x00"], EMPTY])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        options = TailOptions(follow=False)
        found = [m async for m in client.tail("ns1/t1", options=options)]
    assert found == [message(0)]
    assert "wait" not in transport.requests[0].path


async def test_a_server_that_does_not_wait_is_not_asked_again_at_once(make_client, transport):
    asked = []

    def answer(_):
        asked.append(asyncio.get_running_loop().time())
        return EMPTY if len(asked) < 3 else [block(0), b"\x00"]

    transport.answer = answer
    options = TailOptions(wait_s=60, idle_delay_s=0.03)
    async with make_client() as client:
        await take(client.tail("ns1/t1", options=options), 1)
    assert asked[1] - asked[0] >= 0.03
    assert asked[2] - asked[1] >= 0.03


async def test_a_topic_that_is_missing_ends_the_tail(make_client, transport):
    transport.answer = lambda _: Reply(404, {"broker-error": "topic_not_found"}, b"no")
    async with make_client() as client:
        with pytest.raises(TopicNotFound):
            await take(client.tail("ns1/t1"), 1)


async def test_a_tail_gives_up_after_its_limit(make_client, transport):
    transport.answer = lambda _: Unavailable("down")
    async with make_client() as client:
        with pytest.raises(Unavailable, match="down"):
            await take(client.tail("ns1/t1", options=TailOptions(give_up_after_s=0.01)), 1)
    assert len(transport.requests) > 1


async def test_a_poll_that_is_always_cut_off_fails(make_client, transport):
    transport.answer = lambda _: [block(0, 1)]
    async with make_client(deadline_s=0.02) as client:
        with pytest.raises(Unavailable, match="cut off"):
            await client.poll("ns1/t1")


def event(number):
    m = message(number)
    data = {"id": m.id.hex(), "encoding": "text", "payload": m.payload.decode()}
    return f"id: {m.id.hex()}\ndata: {json.dumps(data)}\n\n".encode()


async def test_events_resume_at_the_last_id_and_half_an_event_is_dropped(make_client, transport):
    stream = b": keep-alive\n\n" + event(0) + event(1)
    answers = iter([[stream[:30], stream[30:], event(2)[:40]], [event(2), event(3)]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        found = await take(client.events("ns1/t1", "now"), 4)
    assert found == [message(number) for number in range(4)]
    first, second = transport.requests
    assert first.path.endswith("/events?from=now")
    assert "Last-Event-ID" not in first.headers
    assert second.headers["Last-Event-ID"] == message(1).id.hex()
    assert "from" not in second.path


@pytest.mark.timeout(30, method="signal")
async def test_a_large_event_may_come_in_any_number_of_pieces():
    """If each piece copied the pieces before it, these would take minutes."""
    large = Message(message(0).id, b"x" * 16_000_000)
    data = {"id": large.id.hex(), "encoding": "text", "payload": large.payload.decode()}
    whole = f"data: {json.dumps(data)}\n\n".encode() + event(1)
    stream = [whole[at : at + 64] for at in range(0, len(whole), 64)]
    assert await take(Forwarding((False, stream)).events(None), 2) == [large, message(1)]


BEGIN = message(7).id.hex()
SILENCE = None
OPENING = f"id: {BEGIN}\n\n: ns1:t1\n\n".encode()


def asked_from(request):
    """Return the ``from`` and the last event id of a request for events."""
    return request.path.partition("?from=")[2], request.headers.get("Last-Event-ID")


@pytest.mark.parametrize("size", [1, 2, len(OPENING)])
async def test_events_from_now_resume_where_an_empty_stream_began(make_client, transport, size):
    pieces = [OPENING[at : at + size] for at in range(0, len(OPENING), size)]
    answers = iter([pieces, [b": keep-alive\n\n", Unavailable("lost")], [event(8)]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        assert await take(client.events("ns1/t1", "now"), 1) == [message(8)]
    assert [asked_from(request) for request in transport.requests] == [
        ("now", None),
        ("", BEGIN),
        ("", BEGIN),
    ]


async def test_half_an_id_is_ignored(make_client, transport):
    answers = iter([[OPENING.partition(b"\n\n")[0]], [event(8)]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        assert await take(client.events("ns1/t1", "now"), 1) == [message(8)]
    assert [asked_from(request) for request in transport.requests] == [("now", None)] * 2


async def test_without_a_start_id_events_are_asked_from_now_again(make_client, transport):
    answers = iter([[b": ns1:t1\n\n"], [b": ns1:t1\n\n" + event(8)]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        assert await take(client.events("ns1/t1", "now"), 1) == [message(8)]
    assert [asked_from(request) for request in transport.requests] == [("now", None)] * 2


class Forwarding:
    """Streams of events. Each is a pair: True if another node forwards it, and its chunks."""

    def __init__(self, *streams):
        self.requests = []
        self.leaders = []
        self._streams = iter(streams)

    def events(self, start):
        settings = Settings(retry_delay_min_s=0.0, retry_delay_max_s=0.0)
        source = tails.TailSource(TopicId("ns1", "t1"), self._stream, Retrier(settings))
        return tails.events(source, start)

    @asynccontextmanager
    async def _stream(self, request, timeout_s):
        self.requests.append(request)
        forwarded, chunks = next(self._streams)
        yield StreamedReply(200, {}, chunks_of(chunks), forwarded, self._moved)

    def _moved(self, leader):
        self.leaders.append(leader)
        return "elsewhere" in leader


async def chunks_of(chunks):
    for chunk in chunks:
        if chunk is SILENCE:
            await asyncio.Event().wait()
        yield chunk


async def test_forwarded_events_are_asked_for_once_more():
    forwarding = Forwarding(
        (True, [SILENCE]), (False, [event(2)]), (True, [SILENCE]), (True, [event(4)])
    )
    assert await take(forwarding.events(None), 2) == [message(2), message(4)]
    assert len(forwarding.requests) == 4


async def test_the_second_request_begins_where_the_forwarded_stream_began():
    forwarding = Forwarding((True, [OPENING, event(8)]), (False, [event(8)]))
    assert await take(forwarding.events("now"), 1) == [message(8)]
    assert [asked_from(request) for request in forwarding.requests] == [("now", None), ("", BEGIN)]


async def test_a_forwarded_stream_without_a_start_id_is_left_at_once():
    forwarding = Forwarding((True, [b": ns1:t1\n\n", SILENCE]), (False, [event(8)]))
    assert await take(forwarding.events("now"), 1) == [message(8)]


async def test_an_event_of_a_forwarded_stream_is_not_lost():
    forwarding = Forwarding((True, [event(7), event(8)]), (False, [event(8)]))
    assert await take(forwarding.events("now"), 2) == [message(7), message(8)]
    assert [asked_from(request) for request in forwarding.requests] == [("now", None), ("", BEGIN)]


LEADER = b": leader http://elsewhere:8082;node=2\n\n"


async def test_events_continue_at_the_new_leader():
    forwarding = Forwarding((False, [event(2) + LEADER + event(4), SILENCE]), (False, [event(4)]))
    assert await take(forwarding.events(None), 2) == [message(2), message(4)]
    assert forwarding.leaders == ["http://elsewhere:8082;node=2"]
    assert [asked_from(request)[1] for request in forwarding.requests] == [
        None,
        message(2).id.hex(),
    ]


async def test_events_stay_if_the_new_leader_is_not_usable():
    forwarding = Forwarding((False, [event(2), LEADER]), (True, [event(4), event(6)]))
    assert await take(forwarding.events(None), 3) == [message(2), message(4), message(6)]
    here = Forwarding((False, [LEADER.replace(b"elsewhere", b"here"), event(2), event(4)]))
    assert await take(here.events(None), 2) == [message(2), message(4)]
    assert here.leaders == ["http://here:8082;node=2"]
