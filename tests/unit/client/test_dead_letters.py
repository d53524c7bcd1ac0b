"""A dead letter says why it was made, and keeps room for that."""

from broker.client import dead_letters
from broker.model import Message, TopicId, log_key
from broker.wire import attributes

TOPIC = TopicId("ns", "t")
ID = log_key(1_764_000_000_123, 7) + bytes(10)
ERROR = ValueError("no such thing")


def letter(message: Message, error: BaseException = ERROR, **options):
    about = dead_letters.about(TOPIC, "mailer", message, error, 5, 1_764_000_001_000, generation=3)
    return dead_letters.letter_of(about, message, **options)


def key(topic: TopicId, subscriber: str, message: Message):
    return dead_letters.key_of(
        dead_letters.about(topic, subscriber, message, ERROR, 1, 0, generation=3), message
    )


def test_a_letter_keeps_the_message_and_says_why():
    made = letter(Message(ID, b"payload", b"key", {"h": b"v"}))
    assert (made.payload, made.key) == (b"payload", b"key")
    assert made.headers == {
        "h": b"v",
        "dead-letter-reason": b"ValueError: no such thing",
        "dead-letter-id": ID.hex().encode(),
        "dead-letter-topic": b"ns/t",
        "dead-letter-generation": b"3",
        "dead-letter-subscriber": b"mailer",
        "dead-letter-tries": b"5",
        "dead-letter-time": b"2025-11-24T16:00:01.000Z",
    }


def test_a_key_or_headers_that_leave_no_room_are_left_out():
    many = {f"header-{number}": b"x" * 100 for number in range(99)}
    for key, headers, left_out, kept in (
        (b"k", many, b"headers", b"k"),
        (b"k", {"large": b"x" * 16_300}, b"headers", b"k"),
        (b"k" * 16_300, {}, b"key, headers", None),
    ):
        made = letter(Message(ID, b"payload", key, headers))
        assert (made.payload, made.key) == (b"payload", kept)
        assert made.headers["dead-letter-left-out"] == left_out
        assert attributes.encode(made.key, made.headers)
        assert not set(headers) & set(made.headers)


def test_a_letter_holds_an_error_of_any_length_and_text():
    made = letter(Message(ID, b""), ValueError("\ud800" * 5000))
    assert len(made.headers["dead-letter-reason"]) == dead_letters.REASON_BYTES_MAX
    assert attributes.encode(None, made.headers)


def test_letters_of_different_messages_have_different_keys():
    message = Message(ID, b"payload")
    made = key(TOPIC, "mailer", message)
    assert made == key(TOPIC, "mailer", message._replace(payload=b"other"))
    others = {
        key(TopicId("ns", "t2"), "mailer", message),
        key(TOPIC, "mailer2", message),
        key(TOPIC, "mailer", message._replace(id=bytes(20))),
    }
    assert len({made, *others}) == 4
