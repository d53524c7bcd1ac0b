"""The commands ``broker rowlog dead`` and ``broker rowlog retry``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from broker.cli.command.broker_calls import write_answer
from broker.cli.command.options import flag
from broker.cli.command.output import table, write_json, write_line
from broker.cli.rowlog.connections import At, id_argument, on_rowlog, reaching, rowlog
from broker.moments import time_text
from broker.transfer.jsonlines import bytes_json

if TYPE_CHECKING:
    from broker.rowlog import RowLog
    from broker.rowlog.letters import DeadLetter


@rowlog.command()
@id_argument
@click.argument("subscription")
@click.option(
    "--drop",
    metavar="ROW:SEQ",
    multiple=True,
    help="Drop this dead letter: it counts as done; may be repeated.",
)
@flag("--drop-all", "Drop all dead letters that are not held.")
@on_rowlog
async def dead(
    log: RowLog, *, subscription: str, drop: Sequence[str], drop_all: bool, as_json: bool
) -> None:
    """List the oldest 1,000 dead letters of a SUBSCRIPTION, with their reasons; or drop some.

    \b
    broker rowlog dead mq indexer --json
    broker rowlog dead mq indexer --drop user/7:3
    """
    if drop or drop_all:
        async for letter in log.settled(subscription, None if drop_all else drop, log.drop):
            _report("dropped", letter, as_json)
        return
    letters = await log.dead(subscription)
    write_answer(list(map(_letter_json, letters)), lambda _: _LETTERS(letters), as_json=as_json)
    if letters and await log.dead(subscription, 1, letters[-1]):
        write_line(f"These are the oldest {len(letters)}. There are more.", err=True)


def _letter_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "row": bytes_json(letter.message.row),
        "seq": letter.message.seq,
        "time": time_text(letter.message.timestamp),
        "tries": letter.tries,
        "reason": letter.reason,
        "held": letter.held,
        "data": bytes_json(letter.message.data),
        "payload": bytes_json(letter.message.payload),
    }


_LETTERS = table(
    *("ROW:SEQ", "TIME", "TRIES", "REASON"),
    fields={
        "ROW:SEQ": "place",
        "TIME": lambda each: time_text(each.message.timestamp),
        "REASON": lambda each: (
            "held: dead in an earlier subscription" if each.held else each.reason
        ),
    },
)


@rowlog.command()
@id_argument
@click.argument("subscription")
@click.argument("places", nargs=-1, metavar="[ROW:SEQ]...")
@flag("--all", "Retry all dead letters that are not held.", "everything")
@reaching
def retry(
    at: At,
    name: str,
    subscription: str,
    places: Sequence[str],
    everything: bool,
    as_json: bool,
) -> None:
    """Revive dead letters of a SUBSCRIPTION: they are processed again, with their full number of tries.

    \b
    broker rowlog retry mq indexer user/7:3
    broker rowlog retry mq indexer --all
    """
    if not places and not everything:
        raise click.UsageError("name dead letters, or give --all")

    async def work(log: RowLog) -> None:
        chosen = None if everything else places
        async for letter in log.settled(subscription, chosen, log.revive):
            _report("revived", letter, as_json)

    at.run(name, work)


def _report(done: str, letter: DeadLetter, as_json: bool) -> None:
    if as_json:
        write_json({done: letter.place})
    else:
        write_line(f"{done} {letter.place}")
