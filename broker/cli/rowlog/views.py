"""The commands ``broker rowlog list``, ``broker rowlog show`` and ``broker rowlog verify``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from broker.cli.options import json_option
from broker.cli.output import (
    bytes_json,
    time_text,
    write_json,
    write_line,
    write_properties,
    write_table,
)
from broker.cli.rowlog.connections import At, id_argument, reaching, run

if TYPE_CHECKING:
    from broker.rowlog import RowLog


@click.command("list")
@reaching
@json_option
def list_(hbase: str, zookeeper: str, *, synced: bool, as_json: bool) -> None:
    """List all rowlogs.

    \b
    broker rowlog list
    broker rowlog list --hbase hbase1:9090 --json
    """  # noqa: D301
    at = At(hbase, zookeeper, synced=synced)

    async def work() -> None:
        async with at.rows() as rows:
            from broker.rowlog.directory import all_setups  # noqa: PLC0415

            found, problems = await all_setups(rows)
        if as_json:
            write_json([setup_json(each) for each in found])
        else:
            lines = [
                (each.id, each.table, each.family, str(each.log_byte), _names(each))
                for each in found
            ]
            write_table(("ID", "TABLE", "FAMILY", "LOG BYTE", "SUBSCRIPTIONS"), lines)
        for problem in problems:
            write_line(f"problem: {problem}", err=True)
        if problems:
            raise click.exceptions.Exit(1)

    run(work())


def _names(setup: Any) -> str:
    return " ".join(each.id for each in setup.current)


def setup_json(setup: Any) -> dict[str, Any]:
    """Return a rowlog's setup as JSON."""
    plain = asdict(setup)
    for each in plain["subscriptions"]:
        each["filter"] = {name: bytes_json(value) for name, value in each["filter"].items()}
    return plain


@click.command()
@id_argument
@click.argument("row", required=False)
@reaching
@json_option
def show(
    name: str, row: str | None, hbase: str, zookeeper: str, *, synced: bool, as_json: bool
) -> None:
    """Show a rowlog's settings and the number of open messages; or the messages of one ROW.

    \b
    broker rowlog show mq
    broker rowlog show mq user/7 --json
    """  # noqa: D301
    at = At(hbase, zookeeper, synced=synced)
    at.run(name, lambda log: _show(log, as_json) if row is None else _show_row(log, row, as_json))


async def _show(log: RowLog, as_json: bool) -> None:
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
    write_properties(
        {
            "table": setup.table,
            "family": setup.family,
            "log byte": str(setup.log_byte),
            "shards": str(len(setup.shards)),
            **{key.replace("_", " "): str(value) for key, value in asdict(setup.settings).items()},
        }
    )
    write_line()
    write_table(
        ("SUBSCRIPTION", "ORDER", "OPEN", "OLDEST S", "DEAD", ""),
        [
            (
                each.id,
                str(each.order),
                str(depth["open"]),
                str(depth["oldest_s"]),
                str(depth["dead"]),
                "paused" if each.paused else "",
            )
            for each, depth in zip(setup.current, depths, strict=True)
        ],
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
    lines = [
        (
            str(message["seq"]),
            str(message["time"]),
            name,
            part["standing"] + (" in work" if part["in_work"] else ""),
            str(part["tries"]),
            part["reason"],
        )
        for message in messages
        for name, part in cast("dict[str, Any]", message["subscriptions"]).items()
    ]
    write_table(("SEQ", "TIME", "SUBSCRIPTION", "STANDING", "TRIES", "REASON"), lines)


@click.command()
@id_argument
@click.option(
    "--mend", is_flag=True, help="Restore missing index entries, and remove stale entries."
)
@reaching
@json_option
def verify(
    name: str, hbase: str, zookeeper: str, *, mend: bool, synced: bool, as_json: bool
) -> None:
    """Read all rows and the whole index, and report problems.

    Exits 0 if there is no problem or --mend was given, else 1. Messages that are put or processed
    meanwhile may count as problems: run the command again.

    \b
    broker rowlog verify mq
    broker rowlog verify mq --mend
    """  # noqa: D301

    async def work(log: RowLog) -> None:
        report = await log.verify(mend=mend)
        if as_json:
            write_json(report.as_dict())
        else:
            write_properties(
                {key.replace("_", " "): str(value) for key, value in report.as_dict().items()}
            )
        if not report.is_sound and not mend:
            raise click.exceptions.Exit(1)

    At(hbase, zookeeper, synced=synced).run(name, work)
