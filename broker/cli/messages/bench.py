"""``broker bench``: measure a broker's throughput and latency, as seen from this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import click

from broker.bench.loads import Load, Show, publish_load, tail_load
from broker.bench.measure import BYTES_MIN
from broker.cli.command.broker_calls import BrokerCall, to_broker
from broker.cli.command.options import FiniteRange, option, topic_argument
from broker.cli.command.output import live_line, write_line
from broker.client import Client
from broker.model import TopicId

INTERRUPTED: Final = 130


@click.group()
def bench() -> None:
    """Measure a broker's throughput and latency, as seen from this machine.

    \b
    broker bench publish bench/t --seconds 10
    broker bench tail bench/t --seconds 10
    """


_POSITIVE: Final = FiniteRange(min=0, min_open=True)


@bench.command()
@topic_argument
@option("--size", click.IntRange(min=BYTES_MIN), 100, "Bytes per message.")
@click.option(
    "--rate",
    type=_POSITIVE,
    help="Messages per second.  [default: as fast as possible]",
)
@option("--seconds", _POSITIVE, 10.0, "Publish for so many seconds.")
@option(
    "--publishers",
    click.IntRange(1, 10_000),
    8,
    "Number of publishers; each waits for the acknowledgement of a publish before the next one.",
)
@option("--batch", click.IntRange(1, 10_000), 1, "Messages per publish.")
@to_broker
def publish(call: BrokerCall, **load: Any) -> None:
    """Publish messages to a topic, and report the rate and the latency.

    The latency is the time until the acknowledgement of a publish. With --rate it counts from the time at which
    the publish was due, so that a broker that stalls does not look fast. The messages stay in the topic; to
    remove them, see: broker purge --help

    \b
    broker bench publish bench/t
    broker bench publish bench/t --rate 1000 --size 1000 --seconds 60 --json
    """
    _run(call, "published", lambda client, show: publish_load(client, Load(**load), show))


@bench.command()
@topic_argument
@option("--seconds", _POSITIVE, 10.0, "Receive for so many seconds.")
@to_broker
def tail(call: BrokerCall, topic: TopicId, seconds: float) -> None:
    """Receive the messages that are published to a topic from now on, and report their rate.

    For messages of `broker bench publish` the command also reports the latency, from the call of publish to this
    process. Between two machines it is as exact as their clocks.

    \b
    broker bench tail bench/t --seconds 60
    """
    _run(call, "received", lambda client, show: tail_load(client, topic, seconds, show))


def _run(
    call: BrokerCall, verb: str, work: Callable[[Client, Show], Awaitable[dict[str, Any]]]
) -> None:
    """Do the work with a client, and write its figures."""

    async def measured() -> dict[str, Any]:
        async with Client(settings=call.settings, on_trouble=call.teller) as client:
            with live_line(repeats=True) as show:
                return await work(client, show)

    done = asyncio.run(measured())
    call.write(done, lambda done: _write_figures(verb, done))
    if done["interrupted"]:
        raise click.exceptions.Exit(INTERRUPTED)


def _write_figures(verb: str, done: dict[str, Any]) -> None:
    rate, megabytes = done["messages_per_s"], done["bytes_per_s"] / 1e6
    write_line(
        f"{verb} {done['messages']:,} messages in {done['seconds']:.1f} s: {rate:,.0f} messages/s, "
        f"{megabytes:.2f} MB/s"
    )
    if done["latency_ms"]:
        write_line(
            "latency  "
            + "  ".join(
                f"{name.replace('_', '.')} {value:.2f} ms"
                for name, value in done["latency_ms"].items()
            )
        )
    if done["errors"]:
        write_line(
            "errors   " + ", ".join(f"{code} {count:,}" for code, count in done["errors"].items())
        )
