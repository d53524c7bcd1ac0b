"""``broker tx``: show transactions and those that hold consumers back; abort, invalidate and prune them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import click

from broker.cli.command.broker_calls import BrokerCall, Json, asks, confirm, to_broker, yes_option
from broker.cli.command.options import flag, most_option, place_option, topic_argument
from broker.cli.command.output import properties, table, write_line
from broker.client import SyncClient
from broker.errors import StorageCorrupt
from broker.model import TopicId
from broker.moments import time_text

TRANSACTION = click.IntRange(min=1)
TRANSACTION.name = "whole number"
_transaction = click.argument("transaction", type=TRANSACTION)

_COLOURS: Final = {"in_progress": "yellow", "committing": "yellow", "invalid": "red"}


@click.group()
def tx() -> None:
    """Show transactions, and end those that hold consumers back.

    \b
    broker tx blockers audit/logins
    broker tx list
    broker tx show 1764000000000000000
    broker tx invalidate 1764000000000000000
    broker tx prune
    broker tx reset
    """


def _time(name: str) -> Callable[[Json], str | None]:
    return lambda found: None if found.get(name) is None else time_text(found[name])


_TIMES: Final = {"started": _time("started_ms"), "expires": _time("expires_ms")}
_LIST = table(
    *("TRANSACTION", "TYPE", "STARTED", "EXPIRES", "CLIENT", "CHECKPOINTS"),
    fields={
        "TRANSACTION": "id",
        "STARTED": _TIMES["started"],
        "EXPIRES": _TIMES["expires"],
        "CLIENT": lambda each: each["name"] or each["client"],
        "CHECKPOINTS": lambda each: len(each["checkpoints"]) or None,
    },
    colours=_COLOURS,
    is_shown_empty=False,
)


def _write_list(found: Json) -> str:
    _LIST(found["in_progress"])
    more = found["in_progress_count"] - len(found["in_progress"])
    if more > 0:
        write_line(f"and {more} more: broker tx list --limit {found['in_progress_count']}")
    return "{in_progress_count} in progress, {committing} of them committing; {invalid} invalid"


@tx.command("list")
@most_option(100, 10_000, "List at most so many, the oldest first.")
@asks(_write_list)
def list_(client: SyncClient, limit: int) -> Json:
    """List the transactions in progress, the oldest first.

    \b
    broker tx list
    broker tx list --limit 5 --json
    """
    return client.transactions.list(limit=limit)


_TRANSACTION = properties(
    *(
        "transaction",
        "state",
        "type",
        "client",
        "name",
        "started",
        "expires",
        "checkpoints",
        "changes",
    ),
    fields={
        **_TIMES,
        "transaction": "id",
        "state": lambda found: found["state"].replace("_", " "),
        "checkpoints": lambda found: ", ".join(map(str, found.get("checkpoints") or ())),
        "changes": lambda found: found.get("changes") or None,
    },
)


@tx.command()
@_transaction
@asks(_TRANSACTION)
def show(client: SyncClient, transaction: int) -> Json:
    """Show one transaction by its id: its state, its start and the time when it expires.

    \b
    broker tx show 1764000000000000000
    """
    return client.transactions.show(transaction)


@tx.command()
@_transaction
@asks(
    "transaction {transaction} is no longer in progress",
    question="Abort transaction {transaction}? Its messages that were not rolled back become visible.",
)
def abort(client: SyncClient, transaction: int) -> Json:
    """Abort a transaction whose messages were all rolled back.

    Messages of a short transaction that were not rolled back become visible to consumers. If you are not
    sure, use "broker tx invalidate" instead.

    \b
    broker tx abort 1764000000000000000
    """
    client.transactions.abort(transaction)
    return {"transaction": str(transaction), "aborted": True}


def _invalidated(told: Json) -> str:
    if told["invalidated"]:
        return "transaction {transaction} is now invalid"
    return "transaction {transaction} was not in progress; see: broker tx show {transaction}"


@tx.command()
@_transaction
@asks(
    _invalidated,
    question="Make transaction {transaction} invalid? Its client can then no longer commit it.",
)
def invalidate(client: SyncClient, transaction: int) -> Json:
    """Make a transaction invalid: it can no longer commit, and consumers never see its messages.

    Use this to end a transaction that holds consumers back and whose client is gone.

    \b
    broker tx invalidate 1764000000000000000
    broker tx invalidate 1764000000000000000 --yes --json
    """
    done = client.transactions.invalidate(transaction)
    return {"transaction": str(transaction), "invalidated": done}


_BLOCKERS = table(
    *("TRANSACTION", "STATE", "FIRST MESSAGE", "SINCE", "OWN", "WAITING", "EXPIRES", "CLIENT"),
    fields={
        "FIRST MESSAGE": "first.id",
        "SINCE": lambda each: (
            f"{each['first']['time']} ({timedelta(seconds=int(each['since_s']))} ago)"
        ),
        "OWN": "messages",
        "EXPIRES": "expires_at",
    },
    colours=_COLOURS,
)


def _write_blockers(found: Json) -> str | None:
    if not found["blockers"]:
        return "no transaction holds consumers of {topic} back"
    _BLOCKERS(found["blockers"])
    for each in found["blockers"]:
        write_line(f"{each['write_pointer']}: {each['advice']}", err=True)
    if not found["complete"]:
        write_line("there may be more after these: see --limit and --from", err=True)
    if found["service_problem"]:
        return "the transaction service does not answer: {service_problem}"
    return None


@tx.command()
@topic_argument
@click.option(
    "--transaction",
    type=TRANSACTION,
    metavar="ID",
    help="The transaction in which the consumer reads.  [default: one that begins now]",
)
@place_option("--from", "start", help_text="The consumer's place.  [default: the oldest message]")
@most_option(10, 100, "Show at most so many transactions.")
@asks(_write_blockers)
def blockers(client: SyncClient, topic: TopicId, **asked: Any) -> Json:
    """Show the transactions that hold a topic's consumers back, in the order of the topic.

    \b
    broker tx blockers audit/logins
    broker tx blockers audit/logins --transaction 1764000000000000000
    broker tx blockers audit/logins --from 1h --json
    """
    return client.blockers(topic, **asked)


_PLAN = properties(
    *("invalid", "forgotten", "can be forgotten", "from", "through", "oldest that stays"),
    *("topic", "generation", "page"),
    fields={
        "forgotten": "removed",
        "can be forgotten": lambda plan: None if "removed" in plan else plan["prunable"],
        "from": lambda plan: plan["oldest_prunable"] if plan["prunable"] else None,
        "through": lambda plan: plan["newest_prunable"] if plan["prunable"] else None,
        "oldest that stays": "oldest_left",
        "topic": lambda plan: plan["unpassed"] and "{namespace}/{topic}".format(**plan["unpassed"]),
        "generation": "unpassed.generation",
        "page": "unpassed.page",
    },
)


def _write_plan(plan: Json) -> str | None:
    _PLAN(plan)
    if plan["reason"]:
        write_line(plan["reason"], err=True)
    can_prune = plan["prunable"] and "removed" not in plan
    return "Prune them with: broker tx prune --yes" if can_prune else None


@tx.command()
@flag("--yes", "Prune. Without --yes the command only shows what it would prune.")
@click.option(
    "--through",
    type=click.IntRange(min=0),
    metavar="POINTER",
    help="Prune no pointer above this one. If several brokers share the service, give the lowest 'through' that "
    "they show; if one shows none, prune nothing.",
)
@asks(_write_plan)
def prune(client: SyncClient, yes: bool, through: int | None) -> Json:
    """Show how many invalid transactions the service can forget, and why not more; with --yes, prune them.

    The service forgets a transaction only after every topic was cleaned of it. That is: the transaction is
    older than the longest life of a transaction plus a margin, and sweeps have passed all topics since.

    \b
    broker tx prune
    broker tx prune --yes
    broker tx prune --json
    """
    ask = client.transactions.prune if yes else client.transactions.prune_plan
    return ask(through=through)


@tx.command()
@yes_option
@to_broker
def reset(call: BrokerCall, yes: bool) -> None:
    """Forget all transactions. All their messages become visible, also those that were never committed.

    The broker must be started with --transactions-reset-allowed true. Restart it without the flag afterwards.

    \b
    broker tx reset
    """
    with call.client() as client:
        hidden = _hidden(client)
        confirm(
            f"Forget {hidden}? All their messages become visible to every consumer, also those that were never committed.",
            yes=yes,
            as_json=call.as_json,
        )
        told = client.transactions.reset()
    if hidden != _UNKNOWN:
        hidden = f"{told['in_progress']} transactions in progress, {told['invalid']} invalid write pointers"
    call.write(told, f"forgotten: {hidden}; their messages are visible now")


_UNKNOWN: Final = "all transactions of a damaged journal"


def _hidden(client: SyncClient) -> str:
    """Return what a reset forgets, in words."""
    try:
        found = client.transactions.list(limit=0)
    except StorageCorrupt:
        return _UNKNOWN
    return f"{found['in_progress_count']} transactions in progress and {found['invalid']} invalid write pointers"
