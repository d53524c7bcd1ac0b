"""``broker tx``: show transactions and those that hold consumers back; abort, invalidate and prune them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import click

from broker.cli.broker_calls import BrokerCall, Json, asks, confirm, to_broker, yes_option
from broker.cli.options import most_option, place_option, topic_argument
from broker.cli.output import write_coloured_table, write_line, write_properties
from broker.client import SyncClient
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


def _write_list(found: Json) -> None:
    rows = [
        (
            str(each["id"]),
            each["type"],
            time_text(each["started_ms"]),
            time_text(each["expires_ms"]),
            each["name"] or each["client"] or "",
            str(len(each["checkpoints"]) or ""),
        )
        for each in found["in_progress"]
    ]
    if rows:
        names = ("TRANSACTION", "TYPE", "STARTED", "EXPIRES", "CLIENT", "CHECKPOINTS")
        write_coloured_table(names, rows, _COLOURS)
    more = found["in_progress_count"] - len(rows)
    if more > 0:
        write_line(f"and {more} more: broker tx list --limit {found['in_progress_count']}")
    write_line(
        f"{found['in_progress_count']} in progress, {found['committing']} of them committing; "
        f"{found['invalid']} invalid",
        err=True,
    )


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


def _write_transaction(found: Json) -> None:
    out: dict[str, object] = {"transaction": found["id"], "state": found["state"].replace("_", " ")}
    for name in ("type", "client", "name"):
        if found.get(name):
            out[name] = found[name]
    for name in ("started", "expires"):
        if found.get(f"{name}_ms") is not None:
            out[name] = time_text(found[f"{name}_ms"])
    if found.get("checkpoints"):
        out["checkpoints"] = ", ".join(map(str, found["checkpoints"]))
    if found.get("changes"):
        out["changes"] = found["changes"]
    write_properties(out)


@tx.command()
@_transaction
@asks(_write_transaction)
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


def _write_invalidated(told: Json) -> None:
    transaction = told["transaction"]
    if told["invalidated"]:
        write_line(f"transaction {transaction} is now invalid", err=True)
    else:
        advice = f"see: broker tx show {transaction}"
        write_line(f"transaction {transaction} was not in progress; {advice}", err=True)


@tx.command()
@_transaction
@asks(
    _write_invalidated,
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


def _write_blockers(found: Json, topic: TopicId) -> None:
    blockers = found["blockers"]
    if not blockers:
        write_line(f"no transaction holds consumers of {'/'.join(topic)} back", err=True)
        return
    write_coloured_table(
        ("TRANSACTION", "STATE", "FIRST MESSAGE", "SINCE", "OWN", "WAITING", "EXPIRES", "CLIENT"),
        map(_blocker, blockers),
        _COLOURS,
    )
    for each in blockers:
        write_line(f"{each['write_pointer']}: {each['advice']}", err=True)
    if not found["complete"]:
        write_line("there may be more after these: see --limit and --from", err=True)
    if found["service_problem"]:
        write_line(f"the transaction service does not answer: {found['service_problem']}", err=True)


def _blocker(each: Json) -> Sequence[str]:
    return (
        str(each["transaction"]),
        each["state"] or "",
        each["first"]["id"],
        f"{each['first']['time']} ({timedelta(seconds=int(each['since_s']))} ago)",
        str(each["messages"]),
        str(each["waiting"]),
        each["expires_at"] or "",
        each["client"] or "",
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
@most_option(10, 100, "Show at most so many transactions.")
@to_broker
def blockers(call: BrokerCall, topic: TopicId, **asked: Any) -> None:
    """Show the transactions that hold a topic's consumers back, in the order of the topic.

    \b
    broker tx blockers audit/logins
    broker tx blockers audit/logins --transaction 1764000000000000000
    broker tx blockers audit/logins --from 1h --json
    """
    with call.client() as client:
        found = client.blockers(topic, **asked)
    call.write(found, lambda found: _write_blockers(found, topic))


def _write_plan(plan: Json) -> None:
    lines: dict[str, object] = {"invalid": plan["invalid"]}
    if "removed" in plan:
        lines["forgotten"] = plan["removed"]
    else:
        lines["can be forgotten"] = plan["prunable"]
    if plan["prunable"]:
        lines["from"], lines["through"] = plan["oldest_prunable"], plan["newest_prunable"]
    if plan["oldest_left"] is not None:
        lines["oldest that stays"] = plan["oldest_left"]
    unpassed = plan["unpassed"]
    if unpassed is not None:
        lines["topic"] = f"{unpassed['namespace']}/{unpassed['topic']}"
        lines["generation"] = unpassed["generation"]
        lines["page"] = unpassed["page"]
    write_properties(lines)
    if plan["reason"]:
        write_line(plan["reason"], err=True)
    if plan["prunable"] and "removed" not in plan:
        write_line("Prune them with: broker tx prune --yes", err=True)


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
        found = client.transactions.list(limit=0)
        confirm(
            f"Forget {found['in_progress_count']} transactions in progress and {found['invalid']} invalid write "
            "pointers? All their messages become visible to every consumer, also those that were never committed.",
            yes=yes,
            as_json=call.as_json,
        )
        told = client.transactions.reset()
    call.write(
        told,
        f"forgotten: {told['in_progress']} transactions in progress, {told['invalid']} invalid write pointers; "
        "their messages are visible now",
    )
