"""The commands of ``broker streams``."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from broker.cli.command.broker_calls import BrokerCall, json_option, teller, to_broker
from broker.cli.command.options import SpanType, flag, most_option, name_and_value, option, usage
from broker.cli.command.output import live_line, write_json, write_line, write_lines, write_table
from broker.cli.command.problems import NotNow
from broker.cli.streams import status_text
from broker.clock import SystemClock
from broker.config.sections import ConfigError
from broker.errors import TaskFailed, Unavailable

if TYPE_CHECKING:
    from broker.streams.job_control import Control

LOOK_S: Final = 0.2


def _target(_: click.Context, __: click.Parameter, text: str) -> str:
    """Return MODULE:NAME. Raises click.UsageError."""
    module, _colon, name = text.partition(":")
    if not module or not name:
        raise click.UsageError(
            f"{text!r} is not MODULE:NAME; for example, counting:job is the job named job in counting.py."
        )
    return text


_TARGET: Final = click.argument("target", metavar="MODULE:JOB", callback=_target)
_MASTER: Final = click.option(
    "--master", default="local[*]", show_default=True, help="The Spark master that runs the job."
)


@click.group()
def streams() -> None:
    """Run stream jobs over topics on Spark; show their progress and their state.

    You build a job with broker.streams. MODULE:JOB names a Job in a module, or a function that returns one. Python
    looks for modules in the current folder, too. You need the extra 'streams', and Java 17 or newer.

    \b
    broker streams explain counting:job
    broker streams run counting:job --checkpoint counting.state
    broker streams status counting.state
    broker streams state counting.state sink-1
    broker streams stop counting.state
    """


def _pairs(_: click.Context, __: click.Parameter, given: Iterable[str]) -> dict[str, str]:
    """Read pairs NAME=VALUE. Raises click.BadParameter."""
    return dict(map(name_and_value, given))


_conf = click.option(
    "--conf",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="A setting of Spark, such as spark.sql.shuffle.partitions=8.",
)
_control = click.option(
    "--control",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of the job's status, if its checkpoint is not on this machine.",
)


@streams.command(name="run")
@_TARGET
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIR",
    help="The folder of the job's progress and state. All of Spark's machines must reach it.",
)
@flag("--available", "Process the messages that the topics have now, and end.", "is_available")
@_MASTER
@_conf
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="An option of sources and sinks, such as tokenFile=….",
)
@_control
@to_broker
def run_job(
    call: BrokerCall,
    *,
    checkpoint: str,
    options: dict[str, str],
    control: Path | None,
    **job: Any,
) -> None:
    """Run the job MODULE:JOB until Ctrl-C, SIGTERM or "broker streams stop".

    With the same checkpoint, a job continues where it was stopped, was killed or died. With --json the command
    writes the job's status on one line, every two seconds. Exits 0 if the job was stopped or has ended, 1 if it
    died.

    \b
    broker streams run counting:job --checkpoint counting.state
    broker streams run counting:job --checkpoint counting.state --available
    broker streams run counting:job --checkpoint counting.state --token-file counting.token
    broker streams run counting:job --checkpoint hdfs://name:9000/counting --control counting.run --master yarn
    """
    from broker.streams import job_run  # noqa: PLC0415 - Only these commands need stream jobs.

    settings = call.settings
    if settings.token:
        raise ConfigError(
            "BROKER_TOKEN: a stream job needs its token in a file, which Spark's processes read: --token-file FILE"
        )
    files = {"tms.ca_file": settings.ca_file, "tokenFile": settings.token_file}
    given = {"url": call.url, **{name: file for name, file in files.items() if file}, **options}
    wanted = job_run.JobOptions(
        checkpoint=checkpoint, options=given, deadline_s=call.deadline_s, **job
    )
    with live_line(silent=call.as_json) as show:

        def report(told: dict[str, Any]) -> None:
            if call.as_json:
                write_json(told)
            show(status_text.line(told))

        job_run.run(wanted, _files(checkpoint, control), report, teller(given["url"]))


@streams.command()
@click.argument("directory", metavar="DIR")
@_control
@json_option
def status(directory: str, control: Path | None, as_json: bool) -> None:
    """Show the status of the job with its checkpoint in DIR: rates, lag, watermark, late records, state.

    Exits 1 if the job died, or its process is gone.

    \b
    broker streams status counting.state
    broker streams status counting.state --json
    """
    files = _files(directory, control)
    # The lock comes before the status: the process writes its last status before it frees the lock.
    is_running = files.is_locked
    found = files.read_status()
    found["state"] = files.state_of(found, is_running=is_running)
    if as_json:
        write_json(found)
    else:
        write_line(status_text.head(found, SystemClock().now_ms()))
        if found["queries"]:
            write_table(status_text.HEADS, status_text.rows(found))
    if found["state"] in {"died", "gone"}:
        raise click.exceptions.Exit(1)


@streams.command()
@click.argument("directory", metavar="DIR")
@_control
@option("--timeout", SpanType(0), 60.0, "Wait at most so many seconds for its end.", "timeout_s")
@json_option
def stop(directory: str, control: Path | None, timeout_s: float, as_json: bool) -> None:
    """Stop the job with its checkpoint in DIR, and wait until it has stopped.

    The next run of the job continues with the messages that it has not processed yet.

    \b
    broker streams stop counting.state
    broker streams stop counting.state --timeout 5 --json
    """
    files = _files(directory, control)
    if not files.is_locked:
        found = files.read_status()
        state = files.state_of(found, is_running=False)
        raise TaskFailed(f"no process runs the job {found['job']}: its state is {state}.")
    files.ask_to_stop()
    _wait(files, timeout_s, as_json=as_json)
    found = files.read_status()
    state = files.state_of(found, is_running=False)
    if state in {"died", "gone"}:
        raise TaskFailed(status_text.head({**found, "state": state}, SystemClock().now_ms()))
    if as_json:
        write_json({"job": found["job"], "state": state})
    else:
        write_line(f"{found['job']} {state}")


def _files(checkpoint: str, control: Path | None) -> Control:
    """Return the control files of a job. Raises click.UsageError."""
    from broker.streams.job_control import Control, folder_of  # noqa: PLC0415 - As above.

    return Control(usage(folder_of, checkpoint, control))


def _wait(files: Control, timeout_s: float, *, as_json: bool) -> None:
    """Wait until no process runs the job. Raises NotNow."""
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and only this command needs it.

    ends_s = time.monotonic() + timeout_s
    pause = threading.Event()  # It is never set: a wait ends after its time, or with Ctrl-C.
    is_shown = sys.stderr.isatty() and not as_json
    shown = Console(stderr=True).status("stopping …") if is_shown else nullcontext()
    with shown:
        while files.is_locked:
            if time.monotonic() >= ends_s:
                raise NotNow(
                    Unavailable(
                        f"The job has not stopped in {timeout_s:g} s. It will stop after its current micro-batch."
                    )
                )
            pause.wait(LOOK_S)


@streams.command()
@_TARGET
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan as an SVG picture to this file.",
)
@json_option
def explain(target: str, svg: Path | None, as_json: bool) -> None:
    """Show the plan of the job MODULE:JOB without running it.

    \b
    broker streams explain counting:job
    broker streams explain counting:job --svg counting.svg
    """
    from broker.streams.job_run import load  # noqa: PLC0415 - Only these commands need stream jobs.

    job = load(target)
    if svg is not None:
        svg.write_text(job.explain("svg"), encoding="utf-8")
    if as_json:
        write_json({"job": job.id, "operators": _operators(job)})
    elif svg is None:
        write_lines(job.explain().rstrip("\n"))


def _operators(job: Any) -> list[dict[str, Any]]:
    from broker.streams import graph  # noqa: PLC0415 - The extra may be missing.

    return [
        {
            "name": each.name,
            "text": each.text,
            "parents": [parent.name for parent in each.parents],
            "state": isinstance(each, graph.Stateful),
        }
        for each in job.graph.operators()
    ]


@streams.command(name="state")
@click.argument("directory", metavar="DIR")
@click.argument("end")
@click.option("--operator", metavar="NAME", help="Show the state of this operator only.")
@click.option("--key", metavar="TEXT", help="Show the state of this key only; write it as shown.")
@most_option(50, 100_000, "Show at most so many entries.", "entries_max")
@_MASTER
@_conf
@json_option
def show_state(
    *,
    directory: str,
    end: str,
    operator: str | None,
    key: str | None,
    entries_max: int,
    master: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Show the state of END, a sink or print of the job with its checkpoint in DIR, by operator, key and window.

    The command shows the state after the last finished micro-batch; the job may run meanwhile. The command does not
    import the job's modules: it shows objects by their fields.

    \b
    broker streams state counting.state sink-1
    broker streams state counting.state sink-1 --operator count-1 --key apple
    broker streams state counting.state sink-1 --json | jq .kept
    """
    from broker.streams.job_run import check_spark, started  # noqa: PLC0415 - Only these need them.

    check_spark()
    from broker.streams.spark_session import told_short  # noqa: PLC0415 - With PySpark.
    from broker.streams.stored_state import JobEndState  # noqa: PLC0415

    spark = started("broker streams state", master, conf)
    try:
        with told_short():
            found = JobEndState(spark, directory, end).entries(operator, key, entries_max + 1)
    finally:
        spark.stop()
    shown = found[:entries_max]
    if as_json:
        for entry in shown:
            write_json(entry.as_dict())
    else:
        write_table(status_text.STATE_HEADS, status_text.state_rows(shown))
    if len(found) > len(shown):
        write_line(f"only the first {entries_max:,} entries; for more, give --limit", err=True)
