"""The commands ``broker bench publish`` and ``broker bench tail``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import click

from broker.cli.bench.publish_load import Load
from broker.cli.bench.publish_load import publish as publish_load
from broker.cli.bench.stamp import BYTES_MIN
from broker.cli.bench.tail_load import tail as tail_topic
from broker.cli.options import (
    FiniteRange,
    client_settings,
    teller,
    to_broker,
    topic_argument,
)
from broker.cli.output import write_json, write_line
from broker.client import Client
from broker.model import TopicId

INTERRUPTED: Final = 130


@click.group()
def bench() -> None:
    """Measure a broker's throughput and latency, as seen from this machine.

    \b
    broker bench publish bench/t --seconds 10
    broker bench tail bench/t --seconds 10
    """  # noqa: D301


@bench.command()
@topic_argument
@click.option(
    "--size",
    type=click.IntRange(min=BYTES_MIN),
    default=100,
    show_default=True,
    help="Bytes per message.",
)
@click.option(
    "--rate",
    type=FiniteRange(min=0, min_open=True),
    help="Messages per second.  [default: as fast as possible]",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Publish for so many seconds.",
)
@click.option(
    "--publishers",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Number of publishers; each waits for the acknowledgement of a publish before the next one.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Messages per publish.",
)
@to_broker
def publish(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    size: int,
    rate: float | None,
    seconds: float,
    publishers: int,
    batch: int,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Publish messages to a topic, and report the rate and the latency.

    The latency is the time until the acknowledgement of a publish. With --rate it counts from the time at which
    the publish was due, so that a broker that stalls does not look fast. The messages stay in the topic; to
    remove them, see: broker purge --help

    \b
    broker bench publish bench/t
    broker bench publish bench/t --rate 1000 --size 1000 --seconds 60 --json
    """  # noqa: D301
    load = Load(topic, size, rate, seconds, publishers, batch)
    done = asyncio.run(_run(url, deadline_s, lambda client: publish_load(client, load)))
    _report("published", done, as_json=as_json)


@bench.command()
@topic_argument
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Receive for so many seconds.",
)
@to_broker
def tail(*, topic: TopicId, seconds: float, url: str, deadline_s: float, as_json: bool) -> None:
    """Receive the messages that are published to a topic from now on, and report their rate.

    For messages of `broker bench publish` the command also reports the latency, from the call of publish to this
    process. Between two machines it is as exact as their clocks.

    \b
    broker bench tail bench/t --seconds 60
    """  # noqa: D301
    done = asyncio.run(_run(url, deadline_s, lambda client: tail_topic(client, topic, seconds)))
    _report("received", done, as_json=as_json)


async def _run(
    url: str, deadline_s: float, work: Callable[[Client], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    settings = client_settings(url, deadline_s)
    async with Client(settings=settings, on_trouble=teller(url)) as client:
        return await work(client)


def _report(verb: str, done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(done)
    else:
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
                "errors   "
                + ", ".join(f"{code} {count:,}" for code, count in done["errors"].items())
            )
    if done["interrupted"]:
        raise click.exceptions.Exit(INTERRUPTED)
