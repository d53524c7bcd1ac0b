"""``broker tx``: show transactions and those that hold consumers back; abort, invalidate and prune them."""

from __future__ import annotations

import click

from broker.cli import transactions_text as text
from broker.cli.options import (
    PlaceGiven,
    confirm,
    connect,
    place_option,
    to_broker,
    topic_argument,
    yes_option,
)
from broker.cli.output import write_json, write_line, write_properties
from broker.model import TopicId

TRANSACTION = click.IntRange(min=1)
TRANSACTION.name = "whole number"


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
    """  # noqa: D301 - Click's mark for a paragraph that must not be wrapped.


@tx.command("list")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="List at most so many, the oldest first.",
)
@to_broker
def list_(limit: int, url: str, deadline_s: float, as_json: bool) -> None:
    """List the transactions in progress, the oldest first.

    \b
    broker tx list
    broker tx list --limit 5 --json
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        found = client.transactions.list(limit=limit)
    if as_json:
        write_json(found)
    else:
        text.write_list(found)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@to_broker
def show(transaction: int, url: str, deadline_s: float, as_json: bool) -> None:
    """Show one transaction by its id: its state, its start and the time when it expires.

    \b
    broker tx show 1764000000000000000
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        found = client.transactions.show(transaction)
    if as_json:
        write_json(found)
    else:
        write_properties(text.properties(found))


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@yes_option
@to_broker
def abort(transaction: int, yes: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Abort a transaction whose messages were all rolled back.

    Messages of a short transaction that were not rolled back become visible to consumers. If you are not
    sure, use "broker tx invalidate" instead.

    \b
    broker tx abort 1764000000000000000
    """  # noqa: D301
    confirm(
        f"Abort transaction {transaction}? Its messages that were not rolled back become visible.",
        yes=yes,
        as_json=as_json,
    )
    with connect(url, deadline_s) as client:
        client.transactions.abort(transaction)
    if as_json:
        write_json({"transaction": str(transaction), "aborted": True})
    else:
        write_line(f"transaction {transaction} is no longer in progress", err=True)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@yes_option
@to_broker
def invalidate(transaction: int, yes: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Make a transaction invalid: it can no longer commit, and consumers never see its messages.

    Use this to end a transaction that holds consumers back and whose client is gone.

    \b
    broker tx invalidate 1764000000000000000
    broker tx invalidate 1764000000000000000 --yes --json
    """  # noqa: D301
    confirm(
        f"Make transaction {transaction} invalid? Its client can then no longer commit it.",
        yes=yes,
        as_json=as_json,
    )
    with connect(url, deadline_s) as client:
        done = client.transactions.invalidate(transaction)
    if as_json:
        write_json({"transaction": str(transaction), "invalidated": done})
    elif done:
        write_line(f"transaction {transaction} is now invalid", err=True)
    else:
        write_line(
            f"transaction {transaction} was not in progress; see: broker tx show {transaction}",
            err=True,
        )


@tx.command()
@topic_argument
@click.option(
    "--transaction",
    type=TRANSACTION,
    metavar="ID",
    help="The transaction in which the consumer reads.  [default: one that begins now]",
)
@place_option("--from", "start", help_text="The consumer's place.  [default: the oldest message]")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="Show at most so many transactions.",
)
@to_broker
def blockers(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    transaction: int | None,
    start: PlaceGiven | None,
    limit: int,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Show the transactions that hold a topic's consumers back, in the order of the topic.

    \b
    broker tx blockers audit/logins
    broker tx blockers audit/logins --transaction 1764000000000000000
    broker tx blockers audit/logins --from 1h --json
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        found = client.blockers(topic, transaction=transaction, start=start, limit=limit)
    if as_json:
        write_json(found)
    else:
        text.write_blockers(topic, found)


@tx.command()
@click.option(
    "--yes", is_flag=True, help="Prune. Without --yes the command only shows what it would prune."
)
@click.option(
    "--through",
    type=click.IntRange(min=0),
    metavar="POINTER",
    help="Prune no pointer above this one. If several brokers share the service, give the lowest 'through' that "
    "they show; if one shows none, prune nothing.",
)
@to_broker
def prune(yes: bool, through: int | None, url: str, deadline_s: float, as_json: bool) -> None:
    """Show how many invalid transactions the service can forget, and why not more; with --yes, prune them.

    The service forgets a transaction only after every topic was cleaned of it. That is: the transaction is
    older than the longest life of a transaction plus a margin, and sweeps have passed all topics since.

    \b
    broker tx prune
    broker tx prune --yes
    broker tx prune --json
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        ask = client.transactions.prune if yes else client.transactions.prune_plan
        plan = ask(through=through)
    if as_json:
        write_json(plan)
    else:
        text.write_plan(plan)


@tx.command()
@yes_option
@to_broker
def reset(yes: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Forget all transactions. All their messages become visible, also those that were never committed.

    The broker must be started with --transactions-reset-allowed true. Restart it without the flag afterwards.

    \b
    broker tx reset
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        found = client.transactions.list(limit=0)
        confirm(
            f"Forget {found['in_progress_count']} transactions in progress and {found['invalid']} invalid write "
            "pointers? All their messages become visible to every consumer, also those that were never committed.",
            yes=yes,
            as_json=as_json,
        )
        told = client.transactions.reset()
    if as_json:
        write_json(told)
    else:
        write_line(
            f"forgotten: {told['in_progress']} transactions in progress, {told['invalid']} invalid write pointers; "
            "their messages are visible now",
            err=True,
        )
