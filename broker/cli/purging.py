"""``broker purge``: remove what was published before a moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import click

from broker.cli.options import connect, place_of, to_broker, topic_argument
from broker.cli.output import time_text, write_json
from broker.clock import SystemClock
from broker.model import TopicId

Moment = datetime | Literal["now"]


def moment_of(text: str) -> Moment:
    """Read the moment of a purge: a time, an age, or ``now``. Raises click.BadParameter.

    ``now`` stays a word: the broker's own clock then decides.
    """
    if text == "now":
        return "now"
    try:
        place = place_of(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if isinstance(place, bytes):
        raise click.BadParameter("a purge goes by time: name a time, an age such as 30d, or now")
    try:
        return datetime.fromtimestamp(place / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is past the calendar's end") from None


@click.command()
@topic_argument
@click.option(
    "--before",
    type=moment_of,
    metavar="TIME|AGE|now",
    required=True,
    help="Remove what was published before: 30d, a time, or now for all that is stored.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@to_broker
def purge(
    *, topic: TopicId, before: Moment, yes: bool, url: str, deadline_s: float, as_json: bool
) -> None:
    """Remove a topic's messages that were published before a moment, for good.

    From the answer on no node shows them. The disk is freed by the broker's sweeper, a page (2 MiB) at a
    time.

    \b
    broker purge audit/logins --before 30d
    broker purge audit/logins --before 2026-01-31T12:00:00Z --yes
    broker purge audit/logins --before now
    """  # noqa: D301
    name = f"{topic.namespace}/{topic.topic}"
    if as_json and not yes:
        raise click.UsageError("--json asks nothing: say --yes, too.")
    if not yes:
        which = (
            "all its messages" if before == "now" else f"its messages from before {before:%FT%TZ}"
        )
        click.confirm(
            f"Remove from {name} {which}? Nothing brings them back.", abort=True, err=True
        )
    with connect(url, deadline_s) as client:
        purged_ms = client.purge(topic, before)
    purged_before = time_text(purged_ms)
    if as_json:
        write_json({"topic": name, "purged_before": purged_before, "purged_ms": purged_ms})
    else:
        click.echo(f"{name} begins at {purged_before} now", err=True)
