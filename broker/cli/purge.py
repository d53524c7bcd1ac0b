"""``broker purge``: remove the messages that were published before a moment."""

from __future__ import annotations

from typing import Literal

import click

from broker.cli.options import confirm, connect, place_of, to_broker, topic_argument, yes_option
from broker.cli.output import time_text, write_json, write_line
from broker.clock import SystemClock
from broker.model import TopicId

Moment = int | Literal["now"]
"""ms since 1970, or the word ``now``."""


def moment_of(text: str) -> Moment:
    """Read the moment of a purge: a time, an age, or ``now``. Raises click.BadParameter.

    ``now`` stays a word, so that the broker's own clock decides.
    """
    if text == "now":
        return "now"
    try:
        place = place_of(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not isinstance(place, int):
        raise click.BadParameter(
            "a purge takes no message id: name a time, an age such as 30d, or now"
        )
    return place


@click.command()
@topic_argument
@click.option(
    "--before",
    type=moment_of,
    metavar="TIME|AGE|now",
    required=True,
    help="Remove messages published before: an age (30d), a time, or now for all messages.",
)
@yes_option
@to_broker
def purge(
    *, topic: TopicId, before: Moment, yes: bool, url: str, deadline_s: float, as_json: bool
) -> None:
    """Remove, for ever, a topic's messages that were published before a moment.

    After the answer no node shows them. The broker's sweeper frees their space on the disk later, a page
    (2 MiB) at a time.

    \b
    broker purge audit/logins --before 30d
    broker purge audit/logins --before 2026-01-31T12:00:00Z --yes
    broker purge audit/logins --before now
    """  # noqa: D301
    name = f"{topic.namespace}/{topic.topic}"
    which = (
        f"all messages of {name}"
        if before == "now"
        else f"the messages of {name} published before {time_text(before)}"
    )
    confirm(f"Remove {which}? This can't be undone.", yes=yes, as_json=as_json)
    with connect(url, deadline_s) as client:
        purged_ms = client.purge(topic, before)
    purged_before = time_text(purged_ms)
    if as_json:
        write_json({"topic": name, "purged_before": purged_before, "purged_ms": purged_ms})
    else:
        write_line(f"{name} now begins at {purged_before}", err=True)
