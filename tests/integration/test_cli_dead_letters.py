"""``broker dead-letters`` against a whole broker, and the calls of the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.client import Message, NewMessage, NotFound, Reject, SyncClient, TopicNotFound
from broker.config.sections import Config, LimitsConfig
from tests.kit.commands import Run
from tests.kit.served import ServedNode

ESCAPE = "\x1b]0;owned\x07"


def handle(client: SyncClient, topic: str, name: str, last: bytes, **options: Any) -> list[Message]:
    """Handle the messages of a topic up to one. The handler rejects each payload that begins with "bad"."""
    handled: list[Message] = []

    def handler(message: Message) -> None:
        if message.payload == last:
            subscriber.stop()
        if message.payload.startswith(b"bad"):
            raise Reject(f"no good{ESCAPE}")
        handled.append(message)

    subscriber = client.subscriber(topic, name, handler, **options)
    subscriber.run()
    return handled


@pytest.fixture
def client(node: ServedNode) -> Any:
    with SyncClient(node.url) as made:
        yield made


def with_letters(client: SyncClient, name: str, **options: Any) -> str:
    topic = f"letters/{name}"
    client.create_topic(topic)
    client.publish(topic, [NewMessage(b"bad 1", b"k", {"h": b"v"}), b"good", b"bad 2", b"end"])
    handle(client, topic, "mailer", b"end", **options)
    return topic


def test_dead_letters_are_listed_and_shown(run: Run, client: SyncClient) -> None:
    topic = with_letters(client, "listed")
    found = json.loads(run("dead-letters", "list", topic, "--json")[1])
    assert [(each["subscriber"], each["tries"]) for each in found] == [("mailer", "1")] * 2
    heads, *rows = run("dead-letters", "list", topic)[1].splitlines()
    assert heads.split() == ["ID", "GIVEN", "UP", "SUBSCRIBER", "TRIES", "REASON"]
    assert [row.split()[0] for row in rows] == [each["id"] for each in found]
    assert run("dead-letters", "list", topic, "--subscriber", "other") == (0, "", "")
    first = found[0]["id"]
    shown = run("dead-letters", "show", topic, first)[1]
    assert "bad 1" in shown
    assert "no good" in shown
    told = json.loads(run("dead-letters", "show", topic, first, "--json")[1])
    assert (told["message"]["payload"], told["message"]["key"]) == ("bad 1", "k")
    for text in (shown, "\n".join(rows)):
        assert "\x1b" not in text
    assert run("dead-letters", "show", topic, "00" * 20)[0] == 1
    assert run("dead-letters", "list", "letters/missing")[0] == 1


def test_a_retry_goes_to_its_subscriber_alone_and_once(run: Run, client: SyncClient) -> None:
    topic = with_letters(client, "retried")
    first, second = client.dead_letters.list(topic)
    assert run("dead-letters", "retry", topic, first.id.hex())[0] == 0
    assert [each.id for each in client.dead_letters.list(topic)] == [second.id]
    code, _, told = run("dead-letters", "retry", topic, first.id.hex())
    assert (code, "no open dead letter" in told) == (1, True)
    again = client.poll(topic)[-1]
    assert (again.payload, again.key, again.headers["h"]) == (b"bad 1", b"k", b"v")
    client.publish(topic, b"last")
    assert [each.payload for each in handle(client, topic, "other", b"last")] == [
        b"good",
        b"end",
        b"last",
    ]
    handle(client, topic, "mailer", b"last")
    letters = client.dead_letters.list(topic, subscriber="mailer")
    assert [each.message.payload for each in letters] == [b"bad 2", b"bad 1"]
    assert letters[1].message_id == again.id
    assert "dead-letter-retry-for" not in letters[1].message.headers


def test_a_copy_of_a_retried_message_in_another_topic_is_for_all_subscribers(
    client: SyncClient,
) -> None:
    """A handler often passes the headers of its message on."""
    topic = with_letters(client, "copied")
    client.dead_letters.retry(topic, client.dead_letters.list(topic)[0])
    retried = client.poll(topic)[-1]
    client.create_topic("letters/copies")
    client.publish("letters/copies", b"copy", headers=retried.headers)
    client.publish("letters/copies", b"last")
    found = handle(client, "letters/copies", "other", b"last")
    assert [each.payload for each in found] == [b"copy", b"last"]


def test_all_letters_are_retried_and_dropped(run: Run, client: SyncClient) -> None:
    topic = with_letters(client, "all", dead_letters="letters/shared", create_dead_letters=True)
    shared = ("--letters", "letters/shared")
    assert run("dead-letters", "list", topic) == (0, "", "")
    told = json.loads(run("dead-letters", "retry", topic, "--all", *shared, "--json")[1])
    assert len(told["retried"]) == 2
    assert run("dead-letters", "list", topic, *shared) == (0, "", "")
    client.publish(topic, b"last")
    handle(client, topic, "mailer", b"last", dead_letters="letters/shared")
    assert run("dead-letters", "drop", topic, "--all", *shared, stdin=b"n\n")[0] == 130
    told = json.loads(run("dead-letters", "drop", topic, "--all", *shared, "--yes", "--json")[1])
    assert len(told["dropped"]) == 2
    assert client.dead_letters.list(topic, letters="letters/shared") == []
    for wrong in ((), ("00" * 20, "--all")):
        assert run("dead-letters", "drop", topic, *wrong, *shared, "--yes")[0] == 2


def test_a_retry_of_a_letter_without_its_payload_takes_it_from_the_message(
    client: SyncClient,
) -> None:
    topic = "letters/large"
    client.create_topic(topic)
    large = {f"h{number}": b"x" * 150 for number in range(97)}
    client.publish(topic, [NewMessage(b"bad", b"k", large), b"end"])
    handle(client, topic, "mailer", b"end")
    [letter] = client.dead_letters.list(topic)
    assert letter.left_out == "headers"
    client.dead_letters.retry(topic, letter)
    again = client.poll(topic)[-1]
    assert (again.payload, again.key) == (b"bad", b"k")
    assert large.items() <= again.headers.items()


def test_a_letter_whose_parts_are_gone_can_only_be_dropped(client: SyncClient) -> None:
    topic = "letters/gone"
    client.create_topic(topic)
    large = {f"h{number}": b"x" * 150 for number in range(97)}
    client.publish(topic, [NewMessage(b"bad", b"k", large), b"end"])
    handle(client, topic, "mailer", b"end")
    client.purge(topic, "now")
    [letter] = client.dead_letters.list(topic)
    with pytest.raises(NotFound, match="can only be dropped"):
        client.dead_letters.retry(topic, letter.id)
    client.dead_letters.drop(topic, letter.id)
    assert client.dead_letters.list(topic) == []


def test_foreign_messages_among_letters_are_passed_by(client: SyncClient) -> None:
    topic = "letters/foreign"
    client.create_topic(topic)
    client.create_topic(f"{topic}-dead-letters")
    for headers in ({}, {"dead-letter-id": b"\xff"}, {"dead-letter-settled": b"12"}):
        client.publish(f"{topic}-dead-letters", NewMessage(b"", None, headers))
    assert client.dead_letters.list(topic) == []
    with pytest.raises(TopicNotFound):
        client.dead_letters.list(topic, letters="letters/nowhere")


def test_a_letter_that_is_too_large_leaves_its_payload_out() -> None:
    config = Config(limits=LimitsConfig(body_bytes_max=100_000, body_inflated_bytes_max=100_000))
    with ServedNode(config) as node, SyncClient(node.url) as client:
        topic = "letters/payload"
        client.create_topic(topic)
        payload = b"bad" + bytes(99_900)
        client.publish(topic, payload)
        client.publish(topic, b"end")
        assert [each.payload for each in handle(client, topic, "mailer", b"end")] == [b"end"]
        [letter] = client.dead_letters.list(topic)
        assert (letter.left_out, letter.message.payload) == ("payload", b"")
        client.dead_letters.retry(topic, letter)
        assert client.poll(topic)[-1].payload == payload


def test_a_letter_that_can_not_be_retried_holds_up_no_other(run: Run, client: SyncClient) -> None:
    topic = "letters/full"
    client.create_topic(topic)
    full = NewMessage(b"bad 0", headers={f"h{n}": b"" for n in range(100)})
    client.publish(topic, [full, b"bad 1", full, b"bad 2", b"end"])
    handle(client, topic, "mailer", b"end")
    first, second, third, fourth = (each.id.hex() for each in client.dead_letters.list(topic))
    code, told, problem = run("dead-letters", "retry", topic, "--all")
    assert (code, told.split()) == (1, [second, "retried", fourth, "retried"])
    for letter in (first, third):
        assert f"Dead letter {letter} can't be retried: " in problem
    assert [each.id.hex() for each in client.dead_letters.list(topic)] == [first, third]
    named = ("00" * 20, third, "--yes", "--json")
    code, told, problem = run("dead-letters", "drop", topic, *named)
    assert (code, json.loads(told)) == (1, {"dropped": [third]})
    assert "There is no open dead letter 00" in json.loads(problem)["message"]


def test_all_letters_are_retried_behind_many_that_can_not_be(
    run: Run, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cli.messages.dead_letters.LISTED_MAX", 2)
    topic = "letters/many"
    client.create_topic(topic)
    full = NewMessage(b"bad 0", headers={f"h{n}": b"" for n in range(100)})
    client.publish(topic, [*[full] * 5, b"bad 1", b"end"])
    handle(client, topic, "mailer", b"end")
    last = client.dead_letters.list(topic)[-1].id.hex()
    code, told, _ = run("dead-letters", "retry", topic, "--all")
    assert (code, told) == (1, f"{last} retried\n")
