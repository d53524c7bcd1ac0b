"""``broker cursors``: show the named cursors of a topic and their lag; move and delete them."""

from __future__ import annotations

from typing import Any

import click

from broker.cli.options import (
    PlaceGiven,
    confirm,
    connect,
    id_option,
    place_option,
    to_broker,
    topic_argument,
    yes_option,
)
from broker.cli.output import time_text, write_json, write_line, write_properties, write_table
from broker.client import Cursor, NotFound, SyncClient
from broker.client.positions import before, behind, id_of
from broker.client.values import IdPlace
from broker.model import MessageId, TopicId, timestamp_of
from broker.places import Place

_name_argument = click.argument("name")


@click.group()
def cursors() -> None:
    """Show, move and delete named cursors: the places of consumers that the broker keeps.

    \b
    broker cursors list audit/logins
    broker cursors show audit/logins mailer
    broker cursors set audit/logins mailer --since 1h
    """  # noqa: D301


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


def _place(cursor: Cursor) -> str:
    return "the beginning" if cursor.after is None else cursor.after.hex()


@cursors.command(name="list")
@topic_argument
@to_broker
def list_(topic: TopicId, url: str, deadline_s: float, as_json: bool) -> None:
    """List a topic's named cursors: the place and the lag of each.

    \b
    broker cursors list audit/logins
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        found = [_json(cursor) for cursor in client.cursors.list(topic)]
    if as_json:
        write_json(found)
        return
    rows = [
        (
            each["name"],
            str(each["behind"]),
            each["oldest_unread"] or "-",
            each["updated"],
            each["after"] or "the beginning",
        )
        for each in found
    ]
    if rows:
        write_table(("NAME", "BEHIND", "OLDEST UNREAD", "MOVED", "AFTER"), rows)


@cursors.command()
@topic_argument
@_name_argument
@to_broker
def show(topic: TopicId, name: str, url: str, deadline_s: float, as_json: bool) -> None:
    """Show a named cursor.

    \b
    broker cursors show audit/logins mailer
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        cursor = client.cursors.get(topic, name)
    if as_json:
        write_json(_json(cursor))
    else:
        shown = {key: "-" if value is None else value for key, value in _json(cursor).items()}
        write_properties({**shown, "after": _place(cursor)})


@cursors.command(name="set")
@topic_argument
@_name_argument
@place_option("--since", help_text="Continue here: an age (1h), a time, or a message id.")
@id_option("--after", help_text="Continue after this message.")
@click.option("--oldest", is_flag=True, help="Continue at the oldest message.")
@click.option(
    "--newest", is_flag=True, help="Continue with the messages that are published from now on."
)
@to_broker
def set_(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    name: str,
    since: PlaceGiven | None,
    after: MessageId | None,
    oldest: bool,
    newest: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Move a named cursor, or create it. A running subscriber of this name continues from the new place.

    If another client moves the cursor at the same time, this command changes nothing.

    \b
    broker cursors set audit/logins mailer --since 1h
    broker cursors set audit/logins mailer --oldest
    """  # noqa: D301
    if [since is not None, after is not None, oldest, newest].count(True) != 1:
        raise click.UsageError("Give one of --since, --after, --oldest and --newest.")
    with connect(url, deadline_s) as client:
        place: IdPlace | None = after if since is None else before(since)
        if isinstance(since, Place) and place is not None:
            place = Place(id_of(place, "since"), since.generation)
        if newest:
            found = client.range(topic)
            place = Place(behind(found.latest), found.generation)
        expected = _version(client, topic, name)
        cursor = client.cursors.put(topic, name, place, expected=expected)
        if as_json:
            write_json(_json(client.cursors.get(topic, name)))
    if not as_json:
        write_line(f"{name} is at {_place(cursor)}", err=True)


def _version(client: SyncClient, topic: TopicId, name: str) -> str | None:
    """Return the version of a cursor; None if there is no such cursor."""
    try:
        return client.cursors.get(topic, name).version
    except NotFound:
        return None


@cursors.command()
@topic_argument
@_name_argument
@yes_option
@to_broker
def delete(
    *, topic: TopicId, name: str, yes: bool, url: str, deadline_s: float, as_json: bool
) -> None:
    """Delete a named cursor. A running subscriber of this name ends with an error.

    \b
    broker cursors delete audit/logins mailer --yes
    """  # noqa: D301
    of = f"{topic.namespace}/{topic.topic}"
    confirm(f"Delete cursor {name} of {of}?", yes=yes, as_json=as_json)
    with connect(url, deadline_s) as client:
        deleted = client.cursors.delete(topic, name)
    if as_json:
        write_json({"deleted": deleted})
    elif not deleted:
        write_line(f"there is no cursor {name}", err=True)
