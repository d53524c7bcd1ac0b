"""``broker dead-letters``: show the messages that a subscriber gave up; retry and drop them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import click

from broker.cli.command.broker_calls import BrokerCall, Json, asks, confirm, to_broker, yes_option
from broker.cli.command.options import TOPIC, Command, flag, id_type, topic_argument
from broker.cli.command.output import table, write_line, write_properties
from broker.client import OpenLetter, SyncClient
from broker.client.dead_letters import default_topic
from broker.client.letter_calls import LISTED_MAX
from broker.errors import BadRequest, BrokerError, NotFound, TopicRecreated
from broker.escapes import escaped
from broker.model import MessageId, TopicId
from broker.transfer.jsonlines import message_json

_SHOWN_MAX: Final = 1000
"""How many bytes of a payload are shown."""
_OWN: Final = {
    f"dead-letter-{name}"
    for name in ("id", "topic", "subscriber", "tries", "reason", "time", "left-out")
}

_letters_option = click.option(
    "--letters",
    type=TOPIC,
    metavar="NS/TOPIC",
    help="The topic of the letters [NS/TOPIC-dead-letters].",
)
_subscriber_option = click.option("--subscriber", metavar="NAME", help="Only letters of this one.")
_all_option = flag("--all", "All open letters of the topic.", "every")


class _Named(NamedTuple):
    """The letters that a command is about."""

    topic: TopicId
    ids: tuple[MessageId, ...]
    every: bool
    subscriber: str | None
    letters: TopicId | None


@click.group("dead-letters")
def dead_letters() -> None:
    """Show, retry and drop dead letters: the messages that a subscriber gave up.

    \b
    broker dead-letters list shop/orders
    broker dead-letters retry shop/orders --all --subscriber mailer
    """


def _json(letter: OpenLetter) -> dict[str, Any]:
    told = letter._asdict()
    del told["read_through"]
    return {
        "id": letter.id.hex(),
        **told,
        "message_id": letter.message_id.hex(),
        "message": message_json(letter.message),
    }


_LIST = table(
    *("ID", "GIVEN UP", "SUBSCRIBER", "TRIES", "REASON"),
    fields={"GIVEN UP": "time"},
    is_shown_empty=False,
)


@dead_letters.command(name="list")
@topic_argument
@_letters_option
@_subscriber_option
@click.option("-n", "--limit", type=click.IntRange(1), default=100, show_default=True)
@asks(_LIST)
def list_(client: SyncClient, topic: TopicId, **asked: Any) -> list[Json]:
    """List the open dead letters of a topic, the oldest first.

    \b
    broker dead-letters list shop/orders --subscriber mailer
    """
    return [_json(letter) for letter in client.dead_letters.list(topic, **asked)]


@dead_letters.command()
@topic_argument
@click.argument("letter", type=id_type, metavar="ID")
@_letters_option
@to_broker
def show(call: BrokerCall, topic: TopicId, letter: MessageId, letters: TopicId | None) -> None:
    """Show a dead letter: why it was given up, and its message.

    \b
    broker dead-letters show shop/orders 0000019a0b0c0d0e00000000000000000000000a
    """
    with call.client() as client:
        found = client.dead_letters.get(topic, letter, letters=letters)
    call.write(_json(found), lambda told: _write_letter(told, found.message.payload))


def _write_letter(told: dict[str, Any], payload: bytes) -> None:
    message = told.pop("message")
    text = payload[:_SHOWN_MAX].decode("utf-8", "backslashreplace")
    write_properties(
        {
            **told,
            "left_out": told["left_out"] or "-",
            "key": "-" if message["key"] is None else message["key"],
            **{name: value for name, value in message["headers"].items() if name not in _OWN},
            "payload": text + ("…" if len(payload) > _SHOWN_MAX else ""),
        }
    )


def _letters_named(command: Command) -> Command:
    """Add the arguments and options that name letters; the command gets them as the fields of ``_Named``."""
    ids = click.argument("ids", nargs=-1, type=id_type, metavar="[ID]...")
    for add in (_letters_option, _subscriber_option, _all_option, ids, topic_argument):
        command = add(command)
    return command


@dead_letters.command()
@_letters_named
@to_broker
def retry(call: BrokerCall, **letters: Any) -> None:
    """Publish the messages of dead letters again, for the subscriber that gave them up.

    Each comes behind all present messages of the topic. Subscribers with other names pass it by; other readers see it.

    \b
    broker dead-letters retry shop/orders 0000019a0b0c0d0e00000000000000000000000a
    broker dead-letters retry shop/orders --all --subscriber mailer
    """
    _settle(call, _checked(_Named(**letters)), "retry", "retried")


@dead_letters.command()
@_letters_named
@yes_option
@to_broker
def drop(call: BrokerCall, *, yes: bool, **letters: Any) -> None:
    """Drop dead letters: no command lists them any more. Their topic has them until they expire.

    \b
    broker dead-letters drop shop/orders 0000019a0b0c0d0e00000000000000000000000a --yes
    """
    of = _checked(_Named(**letters))
    count = "all" if of.every else str(len(of.ids))
    question = f"Drop {count} dead letters of {'/'.join(of.topic)}?"
    confirm(question, yes=yes, as_json=call.as_json)
    _settle(call, of, "drop", "dropped")


def _checked(of: _Named) -> _Named:
    if bool(of.ids) == of.every:
        raise click.UsageError("Give the ids of dead letters, or --all.")
    return of


def _chosen(
    client: SyncClient, of: _Named, refused: list[BrokerError]
) -> Iterator[OpenLetter | MessageId]:
    """Yield the letters that a command names. ``--all`` is those that are open when the command begins."""
    yield from of.ids
    calls, end = client.dead_letters, None
    seen: set[MessageId] = set()
    while of.every:
        # Letters that were refused stay at the head of the list.
        most = LISTED_MAX + len(refused)
        page = calls.list(of.topic, letters=of.letters, subscriber=of.subscriber, limit=most)
        if not page:
            return
        # A message may fail again during the command.
        end = end or client.range(of.letters or default_topic(of.topic)).latest
        new = [each for each in page if each.id not in seen and each.id <= end]
        if not new:
            return
        seen.update(each.id for each in new)
        yield from new


def _settle(call: BrokerCall, of: _Named, way: Literal["retry", "drop"], done: str) -> None:
    """Settle each letter. One that is refused for good holds up no other; the command fails at its end."""
    settled: list[str] = []
    refused: list[BrokerError] = []
    with call.client() as client:
        settle = getattr(client.dead_letters, way)
        for letter in _chosen(client, of, refused):
            try:
                settle(of.topic, letter, letters=of.letters)
            except (BadRequest, NotFound, TopicRecreated) as error:
                refused.append(error)
                continue
            settled.append((letter.id if isinstance(letter, OpenLetter) else letter).hex())
            if not call.as_json:
                write_line(f"{settled[-1]} {done}")
    if settled or not refused:
        call.write({done: settled})
    if refused:
        first, *further = refused
        for each in further:
            first.add_note(escaped(each.message))
        raise first
