"""``broker tx``: what is in progress, what holds consumers back, and what operators can do about it."""

from __future__ import annotations

import click

from broker.cli import transactions_text as text
from broker.cli.options import connect, place_option, to_broker, topic_argument
from broker.cli.output import write_json, write_properties
from broker.model import MessageId, TopicId

TRANSACTION = click.IntRange(min=1)
TRANSACTION.name = "whole number"


def _confirmed(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask before a change. Raises click.Abort, click.UsageError."""
    if as_json and not yes:
        raise click.UsageError("--json asks nothing: say --yes, too.")
    if not yes:
        click.confirm(question, abort=True, err=True)


@click.group()
def tx() -> None:
    """Look at transactions, and end those that hold consumers back.

    \b
    broker tx blockers audit/logins
    broker tx list
    broker tx show 1764000000000000000
    broker tx invalidate 1764000000000000000
    broker tx prune
    """  # noqa: D301 - Click's mark for a paragraph that must not be wrapped.


@tx.command("list")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How many are listed, the oldest first.",
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
    """Show one transaction by its id: in progress since when and until when, or invalid.

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
@click.option("--yes", is_flag=True, help="Do not ask.")
@to_broker
def abort(transaction: int, yes: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Abort a transaction that was fully rolled back.

    A short transaction's messages that were not rolled back become visible to consumers. If you don't know,
    invalidate it instead.

    \b
    broker tx abort 1764000000000000000
    """  # noqa: D301
    _confirmed(
        f"Abort transaction {transaction}? What it published and did not roll back becomes visible.",
        yes=yes,
        as_json=as_json,
    )
    with connect(url, deadline_s) as client:
        client.transactions.abort(transaction)
    if as_json:
        write_json({"transaction": transaction, "aborted": True})
    else:
        click.echo(f"transaction {transaction} is not in progress now", err=True)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@click.option("--yes", is_flag=True, help="Do not ask.")
@to_broker
def invalidate(transaction: int, yes: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Make a transaction invalid: it can't commit any more, and consumers skip its messages for good.

    This is what ends a transaction whose client has gone, and that holds consumers back.

    \b
    broker tx invalidate 1764000000000000000
    broker tx invalidate 1764000000000000000 --yes --json
    """  # noqa: D301
    _confirmed(
        f"Make transaction {transaction} invalid? Its client can't commit it any more.",
        yes=yes,
        as_json=as_json,
    )
    with connect(url, deadline_s) as client:
        done = client.transactions.invalidate(transaction)
    if as_json:
        write_json({"transaction": transaction, "invalidated": done})
    elif done:
        click.echo(f"transaction {transaction} is invalid now", err=True)
    else:
        click.echo(
            f"transaction {transaction} was not in progress: see it with: broker tx show {transaction}",
            err=True,
        )


@tx.command()
@topic_argument
@click.option(
    "--transaction",
    type=TRANSACTION,
    metavar="ID",
    help="As the consumer that reads in this transaction.  [default: as one that begins now]",
)
@place_option("--from", "start", help_text="The consumer's place.  [default: the oldest message]")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="How many transactions are looked for.",
)
@to_broker
def blockers(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    transaction: int | None,
    start: MessageId | int | None,
    limit: int,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Show which transactions hold a topic's consumers back: the first one at the head, then those behind it.

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
    "--yes", is_flag=True, help="Prune; without this the command only tells how far it would."
)
@click.option(
    "--through",
    type=click.IntRange(min=0),
    metavar="POINTER",
    help="Prune no pointer above this one. Where several brokers share the service, give the lowest of their bounds.",
)
@to_broker
def prune(yes: bool, through: int | None, url: str, deadline_s: float, as_json: bool) -> None:
    """Say how many invalid transactions the service may forget, and why not more; with --yes, let it forget them.

    It forgets those alone of which every topic was cleaned: older than the longest life of a transaction and a
    margin, and passed by the sweeps of all topics since.

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
