"""The commands of ``broker rowlog`` that show a rowlog, put messages into it, and change its subscriptions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from broker.cli.command.broker_calls import write_answer
from broker.cli.command.options import flag, option
from broker.cli.command.output import table, write_json, write_line, write_spaced
from broker.cli.rowlog.connections import At, id_argument, on_rowlog, reaching, rowlog, run
from broker.moments import time_text
from broker.transfer.jsonlines import bytes_json

if TYPE_CHECKING:
    from broker.rowlog import RowLog


_LIST = table(
    *("ID", "TABLE", "FAMILY", "LOG BYTE", "SUBSCRIPTIONS"),
    fields={"SUBSCRIPTIONS": lambda setup: " ".join(each.id for each in setup.current)},
)


@rowlog.command("list")
@reaching
def list_(at: At, as_json: bool) -> None:
    """List all rowlogs.

    \b
    broker rowlog list
    broker rowlog list --hbase hbase1:9090 --json
    """

    async def work() -> None:
        async with at.rows() as rows:
            from broker.rowlog.directory import all_setups  # noqa: PLC0415

            found, problems = await all_setups(rows)
        write_answer(list(map(setup_json, found)), lambda _: _LIST(found), as_json=as_json)
        for problem in problems:
            write_line(f"problem: {problem}", err=True)
        if problems:
            raise click.exceptions.Exit(1)

    run(work())


def setup_json(setup: Any) -> dict[str, Any]:
    """Return a rowlog's setup as JSON."""
    plain = asdict(setup)
    for each in plain["subscriptions"]:
        each["filter"] = {name: bytes_json(value) for name, value in each["filter"].items()}
    return plain


@rowlog.command()
@id_argument
@click.argument("row", required=False)
@on_rowlog
async def show(log: RowLog, row: str | None, as_json: bool) -> None:
    """Show a rowlog's settings and the number of open messages; or the messages of one ROW.

    \b
    broker rowlog show mq
    broker rowlog show mq user/7 --json
    """
    if row is not None:
        await _show_row(log, row, as_json)
        return
    from broker.rowlog.upkeep import COUNTED_MAX  # noqa: PLC0415 - An extra.

    setup = await log.meta.fresh()
    depths = []
    for each in setup.current:
        count, age_s = await log.depth(each.id)
        dead = await log.index.count_dead(each.id, COUNTED_MAX)
        depths.append(
            {"subscription": each.id, "open": count, "oldest_s": round(age_s, 1), "dead": dead}
        )
    if as_json:
        write_json({**setup_json(setup), "depths": depths})
        return
    shards = {"shards": len(setup.shards)}
    known = {name: getattr(setup, name) for name in ("table", "family", "log_byte")}
    write_spaced({**known, **shards, **asdict(setup.settings)})
    write_line()
    paused = [
        {**depth, "order": each.order, "": "paused" if each.paused else None}
        for each, depth in zip(setup.current, depths, strict=True)
    ]
    table("SUBSCRIPTION", "ORDER", "OPEN", "OLDEST S", "DEAD", "")(paused)


_ROW = table(
    *("SEQ", "TIME", "SUBSCRIPTION", "STANDING", "TRIES", "REASON"),
    fields={"STANDING": lambda part: part["standing"] + (" in work" if part["in_work"] else "")},
)


async def _show_row(log: RowLog, row: str, as_json: bool) -> None:
    found = await log.messages.open(os.fsencode(row))
    messages = [
        {
            "seq": each.id.seq,
            "time": time_text(each.id.timestamp),
            "data": bytes_json(each.data),
            "payload": None if each.payload is None else bytes_json(each.payload),
            "subscriptions": {
                name: {
                    "standing": part.standing.name.lower(),
                    "tries": part.tries,
                    "in_work": bool(part.token),
                    "epoch": part.epoch,
                    "reason": part.reason,
                }
                for name, part in each.state.parts.items()
            },
        }
        for each in found
    ]
    if as_json:
        write_json(messages)
        return
    _ROW(
        {"seq": message["seq"], "time": message["time"], "subscription": name, **part}
        for message in messages
        for name, part in cast("dict[str, Any]", message["subscriptions"]).items()
    )


@rowlog.command()
@id_argument
@flag("--mend", "Restore missing index entries, and remove stale entries.")
@on_rowlog
async def verify(log: RowLog, mend: bool, as_json: bool) -> None:
    """Read all rows and the whole index, and report problems.

    Exits 0 if there is no problem or --mend was given, else 1. Messages that are put or processed
    meanwhile may count as problems: run the command again.

    \b
    broker rowlog verify mq
    broker rowlog verify mq --mend
    """
    report = await log.verify(mend=mend)
    write_answer(report.as_dict(), write_spaced, as_json=as_json)
    if not report.is_sound and not mend:
        raise click.exceptions.Exit(1)


_SUBSCRIPTIONS = table(
    *("SUBSCRIPTION", "ORDER", "MAX TRIES", "PARALLEL", ""),
    fields={
        "SUBSCRIPTION": "id",
        "MAX TRIES": lambda each: each.max_tries or "for ever",
        "": lambda each: "paused" if each.paused else None,
    },
)


def _change(
    _: click.Context, __: click.Parameter, cells: Sequence[str]
) -> dict[bytes, bytes | None]:
    """Read the cells, each FAMILY:COLUMN=VALUE. Raises click.UsageError."""
    change: dict[bytes, bytes | None] = {}
    for cell in cells:
        column, equals, value = cell.partition("=")
        if not equals or ":" not in column:
            raise click.UsageError(f"--cell {cell}: write FAMILY:COLUMN=VALUE")
        change[os.fsencode(column)] = os.fsencode(value)
    return change


@rowlog.command()
@id_argument
@click.argument("row")
@click.option(
    "--cell",
    "change",
    multiple=True,
    callback=_change,
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
@on_rowlog
async def put(
    log: RowLog,
    *,
    row: str,
    change: dict[bytes, bytes | None],
    payload: str,
    data: str,
    only: Sequence[str],
    as_json: bool,
) -> None:
    """Change a ROW and put a message about it, in one atomic step.

    \b
    broker rowlog put mq user/7 --cell d:name=Alice --payload created
    """
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


@rowlog.command()
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
@option(
    "--since",
    click.Choice(["now", "open"]),
    "now",
    "With --add: begin with new messages, or with all that are still open.",
)
@on_rowlog
async def subscriptions(
    log: RowLog,
    *,
    add: str | None,
    remove: str | None,
    pause: str | None,
    resume: str | None,
    row_prefix: str | None,
    since: str,
    as_json: bool,
    **given: int | None,
) -> None:
    """List, add, change, pause and remove subscriptions.

    \b
    broker rowlog subscriptions mq
    broker rowlog subscriptions mq --add indexer --max-tries 5 --since open
    broker rowlog subscriptions mq --pause indexer
    """
    from broker.rowlog import Filter, Subscription  # noqa: PLC0415

    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
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

    setup = await log.meta.fresh()
    answer = setup_json(setup)["subscriptions"]
    write_answer(answer, lambda _: _SUBSCRIPTIONS(setup.current), as_json=as_json)
