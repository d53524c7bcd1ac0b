"""``chaos run``: from the words of the command line to a run and its verdict."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from broker import logs
from broker.config.sections import LogLevel, LogsConfig
from broker.local import Sizes
from broker.local.servers import ServerFailed, ServerMissing
from broker.testing import mutants
from chaos.given_cluster import GivenTarget, Hooks
from chaos.nemeses import NEMESES
from chaos.promises import HEALING_S, UNAVAILABLE_S
from chaos.proxied_cluster import ChaosCluster, HBaseMode
from chaos.run import Run, RunPlan
from chaos.run_folder import STORE, Judged, RunFolder
from chaos.standalone import Standalone, in_namespace
from chaos.target import Target
from chaos.verdict_text import say, tell
from chaos.workloads import BENEATH, REGISTRY

MIX: Final = "mix"
Command = TypeVar("Command", bound=Callable[..., Any])


PROCESSORS: Final = 3
"""Processes of a rowlog."""
TWO_SERVICES = ("transactions", "own-transactions")
"""Two services give the same write pointers, by which a history tells transactions."""


class _Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between them; at most one of those that must be ``apart``."""

    def __init__(
        self,
        known: Sequence[str],
        what: str,
        extra: Sequence[str] = (),
        apart: Sequence[str] = (),
    ) -> None:
        self.name = what
        self._known = known
        self._extra = extra
        self._apart = apart

    @override
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split, and refuse what nobody knows."""
        names = tuple(filter(None, (part.strip() for part in str(value).split(","))))
        for name in names:
            if name not in self._known and name not in self._extra:
                there_are = ", ".join((*self._extra, *self._known))
                self.fail(f"there is no {self.name} {name!r}; there are {there_are}", param, ctx)
        if self._apart and set(self._apart) <= set(names):
            self.fail(f"run {' and '.join(self._apart)} one after the other", param, ctx)
        return names


def _what(command: Command) -> Command:
    """Add the options that say what happens."""
    for option in reversed(
        (
            click.option(
                "--workload",
                "workloads",
                type=_Names(tuple(REGISTRY), "workload", apart=TWO_SERVICES),
                default="log",
                show_default=True,
                help=f"What applications do: {', '.join(REGISTRY)}; several with commas.",
            ),
            click.option(
                "--nemesis",
                "nemeses",
                type=_Names(tuple(NEMESES), "nemesis", (MIX,)),
                default=MIX,
                show_default=True,
                help="What goes wrong; several with commas; 'mix' is everything that the cluster "
                "allows, '' nothing. See: chaos nemeses",
            ),
            click.option(
                "--minutes", default=5.0, show_default=True, type=click.FloatRange(min=0.1)
            ),
            click.option(
                "--seed", default=1, show_default=True, help="Of all that is up to chance."
            ),
            click.option(
                "--together",
                default=3,
                show_default=True,
                type=click.IntRange(min=1),
                help="How many faults there are at once, at most.",
            ),
            click.option(
                "--unavailable-max",
                "unavailable_s",
                default=UNAVAILABLE_S,
                show_default=True,
                metavar="SECONDS",
                type=click.FloatRange(min=0),
                help="How long a topic may acknowledge nothing while nothing is broken; 0: not judged.",
            ),
            click.option(
                "--healing",
                "healing_s",
                default=HEALING_S,
                show_default=True,
                metavar="SECONDS",
                type=click.FloatRange(min=0),
                help="For how long after a fault that does not count.",
            ),
        )
    ):
        command = option(command)
    return command


def _cluster(command: Command) -> Command:
    """Add the options of a cluster that is started for the run."""
    for option in reversed(
        (
            click.option("--nodes", default=3, show_default=True, type=click.IntRange(min=1)),
            click.option(
                "--zookeepers", default="1", show_default=True, type=click.Choice(["1", "3"])
            ),
            click.option(
                "--hbase",
                default="one-jvm",
                show_default=True,
                type=click.Choice(["one-jvm", "distributed"]),
                help="One process with a ZooKeeper of its own; or processes that can be killed.",
            ),
            click.option(
                "--standalone",
                is_flag=True,
                help="One broker over LevelDB instead, on a small disk of its own, under strace.",
            ),
            click.option(
                "--mutant",
                default="",
                type=click.Choice(["", *sorted(mutants.NAMES)]),
                help="Let nodes lack a clause that protects, to see what happens then.",
            ),
        )
    ):
        command = option(command)
    return command


def _words(_: click.Context, __: click.Parameter, command: str | None) -> str | None:
    """Refuse a hook that can't be taken apart."""
    try:
        shlex.split(command or "")
    except ValueError as error:
        raise click.BadParameter(f"{command}: {error}") from error
    return command


def _given(command: Command) -> Command:
    """Add the options of a cluster that runs already."""
    hooks = "A command that does it; {node}, {url}, {host} are filled in."
    for option in reversed(
        (
            click.option(
                "--target",
                metavar="URL,URL",
                help="A cluster that runs already, by the addresses of its nodes.",
            ),
            *(
                click.option(
                    f"--{verb}-cmd", f"{verb}_cmd", metavar="COMMAND", help=hooks, callback=_words
                )
                for verb in Hooks._fields
            ),
            click.option(
                "--session-s",
                default=4.0,
                show_default=True,
                help="ZooKeeper's session time-out there, which pauses go by.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@_what
@_cluster
@_given
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of this run.  [default: a new one in {STORE}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def run(  # noqa: PLR0913, PLR0917 - One parameter an option, as click wants it.
    workloads: tuple[str, ...],
    nemeses: tuple[str, ...],
    minutes: float,
    seed: int,
    together: int,
    unavailable_s: float,
    healing_s: float,
    nodes: int,
    zookeepers: str,
    hbase: HBaseMode,
    standalone: bool,
    mutant: str,
    target: str | None,
    session_s: float,
    directory: Path | None,
    as_json: bool,
    **hooks: str | None,
) -> None:
    """Run workloads while faults come and go, heal, read everything, and judge.

    Without --target a cluster is started for it, with a proxy between every pair of processes. With
    --target nothing is broken but what its hooks allow, and what any client may do.

    \b
    python -m chaos run --workload log --nemesis pause,partition --minutes 5 --seed 7
    python -m chaos run --workload log,transactions --minutes 20
    python -m chaos run --nemesis region-server,gateway --hbase distributed --minutes 5
    python -m chaos run --workload rowlog --nemesis kill,pause,gateway --hbase distributed --nodes 1
    python -m chaos run --standalone --nemesis power-cut,torn-tail,disk-full,flipped-bit --minutes 2
    python -m chaos run --target http://10.0.0.1:8080,http://10.0.0.2:8080 --nemesis leaders
    python -m chaos run --target http://10.0.0.1:8080,http://10.0.0.2:8080 --nemesis kill \\
      --kill-cmd 'ssh {host} systemctl kill --signal=KILL broker' \\
      --start-cmd 'ssh {host} systemctl start broker'
    """  # noqa: D301
    below = sorted(BENEATH.intersection(workloads))
    if below and (standalone or target is not None):
        raise click.UsageError(
            f"the workload {', '.join(below)} uses HBase and ZooKeeper itself, which can be reached only in a "
            "cluster that is started for the run: leave out --target and --standalone"
        )
    if standalone:
        in_namespace(sys.argv[1:])
    is_mix = MIX in nemeses
    plan = RunPlan(
        workloads,
        tuple(NEMESES) if is_mix else nemeses,
        minutes * 60,
        seed,
        together=(1, together),
        each_must_happen=not is_mix,
        unavailable_s=unavailable_s,
        healing_s=healing_s,
        salt="" if target is None else secrets.token_hex(4),
    )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{'-'.join(workloads)}"
    folder = RunFolder(directory or STORE / name)
    if target is not None:
        urls = [url.strip() for url in target.split(",") if url.strip()]
        commands = {key.removesuffix("_cmd"): command for key, command in hooks.items()}
        given = GivenTarget(urls, Hooks(**commands), session_s=session_s)
        judged = asyncio.run(_run(given, plan, folder))
    else:
        sizes = Sizes(
            nodes=nodes, spares=1, zookeepers=int(zookeepers), gateways=2, region_servers=2
        )
        cluster = (
            Standalone(mutant=mutant, seed=seed, report=say)
            if standalone
            else ChaosCluster(
                sizes,
                hbase=hbase,
                processors=PROCESSORS if below else 0,
                mutant=mutant,
                seed=seed,
                report=say,
            )
        )
        judged = _on_own(cluster, plan, folder)
    tell(judged, folder.folder, as_json=as_json)


def _on_own(cluster: ChaosCluster | Standalone, plan: RunPlan, folder: RunFolder) -> Judged:
    """Start a cluster, run on it, and keep what its processes said."""
    try:
        with cluster as target:
            try:
                return asyncio.run(_run(target, plan, folder))
            finally:
                folder.keep_logs(cluster.logs)
    except (ServerFailed, ServerMissing) as error:
        raise click.ClickException(f"the cluster did not start: {error}") from error


async def _run(target: Target, plan: RunPlan, folder: RunFolder) -> Judged:
    """Run; the first Ctrl-C brings it to its end, the second one kills it."""
    running = Run(target, plan, folder, say)
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        say("coming to an end; again to kill")
        running.interrupted.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    # Rowlogs run in this process; what they log is for people, as ``say`` is.
    with logs.writing(LogsConfig(log_level=LogLevel.WARNING)):
        return await running.run()
