"""``broker bench``: measure a broker's throughput and latency, as seen from this machine."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any, Final, NamedTuple

import click

from broker.cli.broker_calls import BrokerCall, Command, to_broker
from broker.cli.measure import BYTES_MIN, Measure, moment_of, now_us, stamped
from broker.cli.options import FiniteRange, topic_argument
from broker.cli.output import cell, write_line
from broker.client import Client
from broker.errors import UnavailableError
from broker.model import MessageId, TopicId

EVERY_S: Final = 1.0
INTERRUPTED: Final = 130


@click.group()
def bench() -> None:
    """Measure a broker's throughput and latency, as seen from this machine.

    \b
    broker bench publish bench/t --seconds 10
    broker bench tail bench/t --seconds 10
    """


def _seconds_option(help_text: str) -> Callable[[Command], Command]:
    positive = FiniteRange(min=0, min_open=True)
    return click.option("--seconds", type=positive, default=10.0, show_default=True, help=help_text)


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
@_seconds_option("Publish for so many seconds.")
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
def publish(call: BrokerCall, **load: Any) -> None:
    """Publish messages to a topic, and report the rate and the latency.

    The latency is the time until the acknowledgement of a publish. With --rate it counts from the time at which
    the publish was due, so that a broker that stalls does not look fast. The messages stay in the topic; to
    remove them, see: broker purge --help

    \b
    broker bench publish bench/t
    broker bench publish bench/t --rate 1000 --size 1000 --seconds 60 --json
    """
    _run(call, "published", lambda client: publish_load(client, Load(**load)))


@bench.command()
@topic_argument
@_seconds_option("Receive for so many seconds.")
@to_broker
def tail(call: BrokerCall, topic: TopicId, seconds: float) -> None:
    """Receive the messages that are published to a topic from now on, and report their rate.

    For messages of `broker bench publish` the command also reports the latency, from the call of publish to this
    process. Between two machines it is as exact as their clocks.

    \b
    broker bench tail bench/t --seconds 60
    """
    _run(call, "received", lambda client: tail_load(client, topic, seconds))


def _run(call: BrokerCall, verb: str, work: Callable[[Client], Awaitable[dict[str, Any]]]) -> None:
    """Do the work with a client, and write its figures."""

    async def measured() -> dict[str, Any]:
        async with Client(settings=call.settings, on_trouble=call.teller) as client:
            return await work(client)

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


# --- The loads -------------------------------------------------------------------------------------


class Load(NamedTuple):
    """A load: requests of ``batch`` messages of ``size`` bytes; ``rate`` in messages/s, or None.

    With a rate, each publish is due at a fixed time, and its latency counts from that time. So if the broker stalls,
    the publishes that are late because of it count as late. Without a rate, a publisher sends its next publish when
    the previous one is acknowledged.
    """

    topic: TopicId
    size: int
    rate: float | None
    seconds: float
    publishers: int
    batch: int


async def publish_load(client: Client, load: Load) -> dict[str, Any]:
    """Publish for ``load.seconds``, and return the measured figures.

    An interrupt ends it early. A publish that the broker can't take now counts as an error.

    Raises:
        RequestError: the broker refuses such publishes.
        OutcomeUnknown: a message may have been stored or not.
    """
    loop = asyncio.get_running_loop()
    await client.topic(load.topic)  # Check that the topic exists before the clock starts.
    measure = Measure(loop.time())
    due = itertools.count()
    ends_s = loop.time() + load.seconds
    async with shown(measure):
        publishers = [
            asyncio.ensure_future(_publisher(client, load, measure, due, ends_s))
            for _ in range(load.publishers)
        ]
        is_interrupted = await ended(publishers)
    asked = {**load._asdict(), "topic": "/".join(load.topic)}
    return {"asked": asked, **measure.as_json(loop.time()), "interrupted": is_interrupted}


async def _publisher(
    client: Client, load: Load, measure: Measure, due: Iterator[int], ends_s: float
) -> None:
    loop = asyncio.get_running_loop()
    began_s = ends_s - load.seconds
    while True:
        due_s = loop.time() if load.rate is None else began_s + next(due) * load.batch / load.rate
        if max(due_s, loop.time()) >= ends_s:
            return
        if due_s > loop.time():
            await asyncio.sleep(due_s - loop.time())
        payload = stamped(load.size, now_us())
        try:
            await client.publish(load.topic, payload if load.batch == 1 else [payload] * load.batch)
        except UnavailableError as error:
            measure.failed(error)
        else:
            us = round((loop.time() - due_s) * 1e6)
            measure.add(load.batch, load.batch * load.size, us)


async def ended(tasks: Collection[asyncio.Task[None]], within_s: float | None = None) -> bool:
    """Wait until all tasks have ended, one has failed, or ``within_s`` is over; then cancel the tasks.

    Return whether an interrupt ended the wait. Raises the error of the first task that failed.
    """
    is_interrupted = False
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        is_interrupted = True
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return is_interrupted


async def tail_load(client: Client, topic: TopicId, seconds: float) -> dict[str, Any]:
    """Receive for ``seconds``, and return the measured figures. An interrupt ends it early.

    Raises:
        RequestError: the broker refuses such polls.
    """
    loop = asyncio.get_running_loop()
    after = (await client.range(topic)).latest
    measure = Measure(loop.time())
    async with shown(measure):
        receiving = asyncio.ensure_future(_receive(client, topic, after, measure))
        is_interrupted = await ended([receiving], seconds)
    asked = {"topic": "/".join(topic), "seconds": seconds}
    return {"asked": asked, **measure.as_json(loop.time()), "interrupted": is_interrupted}


async def _receive(client: Client, topic: TopicId, after: MessageId, measure: Measure) -> None:
    async with aclosing(client.tail_pages(topic, after, inclusive=False)) as pages:
        async for page in pages:
            received_us = now_us()
            for message in page:
                sent_us = moment_of(message.payload)
                latency_us = None if sent_us is None else received_us - sent_us
                measure.add(1, len(message.payload), latency_us)


@asynccontextmanager
async def shown(measure: Measure) -> AsyncIterator[None]:
    """Show a measure's figures every second on standard error while the block runs; a terminal overwrites them."""
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and only this command needs it.
    from rich.live import Live  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    async def report() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            line = measure.look(loop.time()).line
            if sys.stderr.isatty():
                live.update(cell(line), refresh=True)
            else:
                write_line(line, err=True)

    with live if sys.stderr.isatty() else nullcontext():
        reporting = asyncio.ensure_future(report())
        try:
            yield
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting
