"""The commands ``broker rowlog put`` and ``broker rowlog subscriptions``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from broker.cli.options import json_option
from broker.cli.output import write_json, write_line, write_table
from broker.cli.rowlog.connections import At, id_argument, reaching
from broker.cli.rowlog.views import setup_json

if TYPE_CHECKING:
    from broker.rowlog import RowLog


@click.command()
@id_argument
@click.argument("row")
@click.option(
    "--cell",
    "cells",
    multiple=True,
    metavar="FAMILY:COLUMN=VALUE",
    help="A cell to change in the row; may be repeated.",
)
@click.option("--payload", default="", help="The message's payload.")
@click.option("--data", default="", help="Small data that is stored in the index, too.")
@click.option(
    "--subscription",
    "only",
    multiple=True,
    help="Put the message only for this subscription; may be repeated.",
)
@reaching
@json_option
def put(  # noqa: PLR0913 - One parameter per option.
    name: str,
    row: str,
    cells: Sequence[str],
    *,
    payload: str,
    data: str,
    only: Sequence[str],
    hbase: str,
    zookeeper: str,
    synced: bool,
    as_json: bool,
) -> None:
    """Change a ROW and put a message about it, in one atomic step.

    \b
    broker rowlog put mq user/7 --cell d:name=Alice --payload created
    """  # noqa: D301
    change: dict[bytes, bytes | None] = {}
    for cell in cells:
        column, equals, value = cell.partition("=")
        if not equals or ":" not in column:
            raise click.UsageError(f"--cell {cell}: write FAMILY:COLUMN=VALUE")
        change[os.fsencode(column)] = os.fsencode(value)

    async def work(log: RowLog) -> None:
        message = await log.put(
            os.fsencode(row),
            change,
            os.fsencode(payload),
            data=os.fsencode(data),
            subscriptions=only or None,
        )
        seq = None if message is None else message.seq
        if as_json:
            write_json({"row": row, "seq": seq})
        elif seq is None:
            write_line("changed the row; no subscription takes the message")
        else:
            write_line(f"put message {seq} of row {row}")

    At(hbase, zookeeper, synced=synced).run(name, work)


@click.command()
@id_argument
@click.option("--add", metavar="SUBSCRIPTION", help="Add a subscription, or change it.")
@click.option("--remove", metavar="SUBSCRIPTION", help="Remove a subscription and its messages.")
@click.option(
    "--pause",
    metavar="SUBSCRIPTION",
    help="Stop processing its messages; new messages are still put.",
)
@click.option("--resume", metavar="SUBSCRIPTION", help="Process its messages again.")
@click.option(
    "--order", type=int, help="With --add: its place among the subscriptions.  [default: 0]"
)
@click.option(
    "--max-tries",
    type=click.IntRange(min=0),
    help="With --add: tries before a message is dead; 0 is without limit.  [default: 10]",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    help="With --add: rows that are processed at once.  [default: 10]",
)
@click.option("--row-prefix", help="With --add: only messages of rows with this prefix.")
@click.option(
    "--since",
    type=click.Choice(["now", "open"]),
    default="now",
    show_default=True,
    help="With --add: begin with new messages, or with all that are still open.",
)
@reaching
@json_option
def subscriptions(  # noqa: PLR0913 - One parameter per option.
    name: str,
    *,
    add: str | None,
    remove: str | None,
    pause: str | None,
    resume: str | None,
    order: int | None,
    max_tries: int | None,
    parallel: int | None,
    row_prefix: str | None,
    since: str,
    hbase: str,
    zookeeper: str,
    synced: bool,
    as_json: bool,
) -> None:
    """List, add, change, pause and remove subscriptions.

    \b
    broker rowlog subscriptions mq
    broker rowlog subscriptions mq --add indexer --max-tries 5 --since open
    broker rowlog subscriptions mq --pause indexer
    """  # noqa: D301
    given = {"order": order, "max_tries": max_tries, "parallel": parallel}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}

    async def work(log: RowLog) -> None:
        from broker.rowlog import Filter, Subscription  # noqa: PLC0415

        if add:
            there = (await log.meta.fresh()).named(add) or Subscription(add)
            wanted = replace(there, **changes)
            if row_prefix is not None:
                wanted = replace(wanted, filter=Filter(os.fsencode(row_prefix)))
            await log.subscribe(wanted, since=cast("Literal['now', 'open']", since))
        if remove:
            write_line(f"removed {remove}; {await log.unsubscribe(remove)} messages waited for it")
        for each, paused in ((pause, True), (resume, False)):
            if each:
                await log.pause(each, paused=paused)
        await _list_subscriptions(log, as_json)

    At(hbase, zookeeper, synced=synced).run(name, work)


async def _list_subscriptions(log: RowLog, as_json: bool) -> None:
    setup = await log.meta.fresh()
    if as_json:
        write_json(setup_json(setup)["subscriptions"])
        return
    lines = [
        (
            each.id,
            str(each.order),
            str(each.max_tries or "for ever"),
            str(each.parallel),
            "paused" if each.paused else "",
        )
        for each in setup.current
    ]
    write_table(("SUBSCRIPTION", "ORDER", "MAX TRIES", "PARALLEL", ""), lines)
