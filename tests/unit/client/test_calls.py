import pytest

from broker.client import Settings, protocol
from broker.client import calls as calls_module
from broker.client.calls import Calls
from broker.client.client_request import Reply
from broker.client.retrier import Retrier
from broker.client.room import Room
from broker.errors import BodyTooLarge, TopicNotFound, Unavailable
from broker.model import Message, Poll, TopicId, log_key
from tests.kit.poll_replies import page_of

TOPIC = TopicId("ns1", "t1")
BUSY = Reply(503, {"broker-error": "overloaded"}, b"busy")
GONE = Reply(404, {"broker-error": "topic_not_found"}, b"gone")
MESSAGES = [Message(log_key(1000 + i, 0) + bytes(10), b"%d" % i) for i in range(3)]
PAGES = [page_of([m]) for m in MESSAGES]


@pytest.fixture
def calls(transport):
    settings = Settings(retry_delay_min_s=0.0005, retry_delay_max_s=0.001, deadline_s=5.0)
    return Calls(transport, Retrier(settings), Room(100, 1 << 20))


def answers(transport, *script):
    following = iter(script)
    transport.answer = lambda _: next(following)


async def test_a_write_is_retried_or_raises_the_error_of_its_answer(calls, transport):
    answers(transport, BUSY, Reply(200, {"x": "done"}, b""), GONE)
    request = protocol.delete_topic(TOPIC)
    assert (await calls.write(request)).headers == {"x": "done"}
    with pytest.raises(TopicNotFound, match="gone"):
        await calls.write(request)
    assert len(transport.requests) == 3


def body(reply):
    return reply.body


async def test_a_read_that_is_cut_off_is_retried_from_the_start(calls, transport):
    answers(transport, [b"ab", Unavailable("lost")], BUSY, [b"ab", b"cd"])
    assert await calls.ask(protocol.stats(TOPIC), body) == b"abcd"


async def test_an_answer_that_is_too_large_to_be_read_whole_is_an_error(
    calls, transport, monkeypatch
):
    monkeypatch.setattr(calls_module, "REPLY_BYTES_MAX", 3)
    answers(transport, [b"ab", b"c"], [b"ab", b"cd"])
    assert await calls.ask(protocol.stats(TOPIC), body) == b"abc"
    with pytest.raises(BodyTooLarge, match="Ask for less"):
        await calls.ask(protocol.stats(TOPIC), body)
    assert len(transport.requests) == 2


async def test_a_poll_never_gives_the_messages_of_an_attempt_that_was_cut_off(calls, transport):
    answers(transport, PAGES[:2], [*PAGES, b"\x00"])
    assert await calls.poll(protocol.poll(TOPIC, Poll()), 0.0) == MESSAGES
    assert len(transport.requests) == 2
