"""``broker access quotas``: list, set and remove the quotas of principals and of topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import click

from broker.cli.command.broker_calls import Json, asks
from broker.cli.command.output import table
from broker.client import SyncClient
from broker.client.client_request import request_for

_UNITS: Final[Mapping[str, int]] = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}
_AMOUNT: Final = re.compile(r"(\d{1,16})([kmgt]i?)?b?", re.IGNORECASE)
_NONE: Final = "none"


@click.group()
def quotas() -> None:
    """Bound what a principal uses, and what is done with a topic.

    WHO is a principal, '*' (each principal without a limit of its own), topic:NS/TOPIC, 'topic:NS/*' or 'topic:*'.

    \b
    broker access quotas list
    broker access quotas set alice publish_requests_s=100 publish_bytes_s=10MB
    broker access quotas set topic:audit/logins stored_bytes=5GB
    """


def _limits(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    for each in given:
        kind, sign, text = each.partition("=")
        amount = _AMOUNT.fullmatch(text)
        if not (kind and sign and (amount or text == _NONE)):
            raise click.BadParameter(
                f"{each!r} is not KIND=LIMIT, such as waits=50, publish_bytes_s=10MB or waits=none"
            )
        limits[kind] = int(amount[1]) * _UNITS[(amount[2] or "").lower()] if amount else None
    return limits


def _row(shown: Json) -> dict[str, str]:
    limits = ((kind, _NONE if limit is None else limit) for kind, limit in shown["limits"].items())
    return {"who": shown["who"], "limits": " ".join(f"{kind}={limit}" for kind, limit in limits)}


_LIST = table("WHO", "LIMITS", is_shown_empty=False)


def _write_list(told: Json) -> None:
    _LIST([_row(shown) for shown in told["quotas"]])


@quotas.command(name="list")
@asks(_write_list)
def list_(client: SyncClient) -> Json:
    """List all limits that are set.

    \b
    broker access quotas list
    """
    return client.ask(request_for("quotas"))


_who_argument = click.argument("who", metavar="WHO")


@quotas.command(name="set")
@_who_argument
@click.argument("limits", metavar="KIND=LIMIT", nargs=-1, required=True, callback=_limits)
@asks("the limits of {who} are set; they count within two seconds on every node")
def set_(client: SyncClient, who: str, limits: Mapping[str, int | None]) -> Json:
    """Replace the limits of a name. Limits that are not given are removed.

    'none' means no limit, although '*' or a less exact name has one.

    \b
    broker access quotas set alice publish_requests_s=100 publish_bytes_s=10MB waits=none
    """
    return client.ask(request_for("put_quota", who=who, sent={"limits": limits}))


@quotas.command()
@_who_argument
@asks(lambda told: "{who} has no limits" if told["changed"] else "{who} had no limits")
def remove(client: SyncClient, who: str) -> Json:
    """Remove the limits of a name.

    \b
    broker access quotas remove alice
    """
    return client.ask(request_for("delete_quota", who=who))
