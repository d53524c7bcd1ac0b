"""``broker rowlog process``: run a candidate for processing, or a process that only serves listeners."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.command.options import flag
from broker.cli.command.output import write_json, write_line
from broker.cli.rowlog.connections import At, address_of, id_argument, reaching, rowlog
from broker.user_code import check_takes

if TYPE_CHECKING:
    from broker.rowlog import RowLog


@rowlog.command()
@id_argument
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    required=True,
    metavar="SUBSCRIPTION=MODULE:FUNCTION",
    help="An async function that handles one message.",
)
@click.option(
    "--serve",
    metavar="HOST:PORT",
    help="Listen at HOST:PORT, and let processors on other nodes call these listeners.",
)
@click.option(
    "--url",
    metavar="URL",
    help="With --serve: the URL at which processors reach this process; by default http://HOST:PORT.",
)
@flag("--listen-only", "With --serve: only serve listeners, never process.")
@flag("--once", "End when no message is open.")
@reaching
def process(
    at: At,
    *,
    name: str,
    listeners: Sequence[str],
    serve: str | None,
    url: str | None,
    listen_only: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Process a rowlog with your own listeners, until Ctrl-C.

    With --zookeeper you can run several such processes: they elect one that processes, and another takes over
    when it ends. Python looks for modules in the current directory, too.

    \b
    broker rowlog process mq --listener indexer=app.index:on_message --zookeeper localhost:2181
    broker rowlog process mq --listener indexer=app:handle --zookeeper zk1:2181 --serve 10.0.0.7:8090 --listen-only
    """
    if not serve and (listen_only or url):
        option = "--listen-only" if listen_only else "--url"
        raise click.UsageError(f"{option} needs --serve HOST:PORT")
    host, port = address_of("--serve", serve) if serve else ("", 0)
    sys.path.insert(0, str(Path.cwd()))
    functions = dict(map(_function, listeners))

    async def work(log: RowLog) -> None:
        for subscription, function in functions.items():
            log.listen(subscription, function)
        if serve:
            try:
                told = await log.serve_listeners(host, port, url=url or "")
            except OSError as error:
                raise click.ClickException(f"can't listen on {serve}: {error.strerror}") from error
            _report({"event": "listening", "url": told}, f"listening at {told}", as_json)
        if not listen_only:
            await log.start(remote=bool(log.zookeeper))
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        _report({"event": "processing", "rowlog": name}, f"processing {name}", as_json)
        while not ended.is_set():
            if once and not sum([(await log.depth(each, 1))[0] for each in functions]):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await ended.wait()

    at.run(name, work)


def _function(given: str) -> tuple[str, Any]:
    subscription, equals, place = given.partition("=")
    module, colon, function = place.partition(":")
    if not equals or not colon or not module:
        raise click.UsageError(f"--listener {given}: write SUBSCRIPTION=MODULE:FUNCTION")
    try:
        listener = getattr(importlib.import_module(module), function)
        check_takes(listener, 1, "A listener")
    except Exception as error:
        # The module runs while it is imported, so it may raise anything.
        raise click.UsageError(f"--listener {given}: {type(error).__name__}: {error}") from error
    return subscription, listener


def _report(event: dict[str, str], text: str, as_json: bool) -> None:
    if as_json:
        write_json(event)
    else:
        write_line(text)
