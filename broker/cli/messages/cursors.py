"""``broker cursors``: show the named cursors of a topic and their lag; move and delete them."""

from __future__ import annotations

from typing import Any

import click

from broker.cli.command.broker_calls import BrokerCall, Json, asks, to_broker
from broker.cli.command.options import PlaceGiven, flag, id_option, place_option, topic_argument
from broker.cli.command.output import table, write_line, write_properties
from broker.client import Cursor, NotFound, SyncClient
from broker.client.positions import before, behind, id_of
from broker.client.values import IdPlace
from broker.model import MessageId, TopicId, timestamp_of
from broker.moments import time_text
from broker.places import Place

_name_argument = click.argument("name")
_BEGINNING = "the beginning"


@click.group()
def cursors() -> None:
    """Show, move and delete named cursors: the places of consumers that the broker keeps.

    \b
    broker cursors list audit/logins
    broker cursors show audit/logins mailer
    broker cursors set audit/logins mailer --since 1h
    """


def _json(cursor: Cursor) -> dict[str, Any]:
    lag = cursor.lag
    oldest = None if lag is None else lag.oldest
    return {
        "name": cursor.name,
        "after": None if cursor.after is None else cursor.after.hex(),
        "version": cursor.version,
        "data": cursor.data,
        "updated": time_text(cursor.updated_ms),
        "generation": cursor.generation,
        "behind": None if lag is None else lag.messages,
        "lost": None if lag is None else lag.lost,
        "oldest_unread": None if oldest is None else time_text(timestamp_of(oldest)),
    }


def _after(cursor: Json) -> str:
    return cursor["after"] or _BEGINNING


_LIST = table(
    *("NAME", "BEHIND", "OLDEST UNREAD", "MOVED", "AFTER"),
    fields={"MOVED": "updated", "AFTER": _after},
    none="-",
    is_shown_empty=False,
)


@cursors.command(name="list")
@topic_argument
@asks(_LIST)
def list_(client: SyncClient, topic: TopicId) -> list[Json]:
    """List a topic's named cursors: the place and the lag of each.

    \b
    broker cursors list audit/logins
    """
    return [_json(cursor) for cursor in client.cursors.list(topic)]


def _write_cursor(cursor: Json) -> None:
    shown = {key: "-" if value is None else value for key, value in cursor.items()}
    write_properties({**shown, "after": _after(cursor)})


@cursors.command()
@topic_argument
@_name_argument
@asks(_write_cursor)
def show(client: SyncClient, topic: TopicId, name: str) -> Json:
    """Show a named cursor.

    \b
    broker cursors show audit/logins mailer
    """
    return _json(client.cursors.get(topic, name))


@cursors.command(name="set")
@topic_argument
@_name_argument
@place_option("--since", help_text="Continue here: an age (1h), a time, or a message id.")
@id_option("--after", help_text="Continue after this message.")
@flag("--oldest", "Continue at the oldest message.")
@flag("--newest", "Continue with the messages that are published from now on.")
@to_broker
def set_(
    call: BrokerCall,
    *,
    topic: TopicId,
    name: str,
    since: PlaceGiven | None,
    after: MessageId | None,
    oldest: bool,
    newest: bool,
) -> None:
    """Move a named cursor, or create it. A running subscriber of this name continues from the new place.

    If another client moves the cursor at the same time, this command changes nothing.

    \b
    broker cursors set audit/logins mailer --since 1h
    broker cursors set audit/logins mailer --oldest
    """
    if [since is not None, after is not None, oldest, newest].count(True) != 1:
        raise click.UsageError("Give one of --since, --after, --oldest and --newest.")
    place: IdPlace | None = after if since is None else before(since)
    if isinstance(since, Place) and place is not None:
        place = Place(id_of(place, "since"), since.generation)
    with call.client() as client:
        if newest:
            found = client.range(topic)
            place = Place(behind(found.latest), found.generation)
        cursor = client.cursors.put(topic, name, place, expected=_version(client, topic, name))
        if call.as_json:
            call.write(_json(client.cursors.get(topic, name)))
            return
    at = _BEGINNING if cursor.after is None else cursor.after.hex()
    write_line(f"{name} is at {at}", err=True)


def _version(client: SyncClient, topic: TopicId, name: str) -> str | None:
    """Return the version of a cursor; None if there is no such cursor."""
    try:
        return client.cursors.get(topic, name).version
    except NotFound:
        return None


@cursors.command()
@topic_argument
@_name_argument
@asks(
    lambda told: None if told["deleted"] else "there is no cursor {name}",
    question="Delete cursor {name} of {topic}?",
)
def delete(client: SyncClient, topic: TopicId, name: str) -> Json:
    """Delete a named cursor. A running subscriber of this name ends with an error.

    \b
    broker cursors delete audit/logins mailer --yes
    """
    return {"deleted": client.cursors.delete(topic, name)}
