"""The command ``chaos run``: its options, and the run that they describe."""

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
from click.core import ParameterSource
from typing_extensions import override

from broker import logs
from broker.cli.command.options import FiniteRange, told
from broker.config.sections import LogLevel, LogsConfig
from broker.local import Sizes
from broker.local.servers import ServerFailed, ServerMissing
from broker.secret import read_secret
from broker.testing import mutants
from chaos.given_cluster import GivenTarget, Hooks, addresses
from chaos.nemeses import NEMESES
from chaos.promises import HEALING_S, UNAVAILABLE_S
from chaos.proxied_cluster import ChaosCluster, HBaseMode
from chaos.run import Run, RunPlan
from chaos.run_folder import STORE, Judged, RunFolder
from chaos.standalone import Standalone, in_namespace
from chaos.target import Target
from chaos.verdict_text import NotJudged, say, tell
from chaos.workloads import BENEATH, REGISTRY

MIX: Final = "mix"
PROCESSORS: Final = 3
"""The number of processes that handle a rowlog."""
TWO_SERVICES = ("transactions", "own-transactions")
"""Workloads with different transaction services.

Both services give the same write pointers, and a history identifies transactions by their pointers.
"""
Command = TypeVar("Command", bound=Callable[..., Any])


class _Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between them. Names that must be ``apart`` may not be together."""

    def __init__(
        self,
        known: Sequence[str],
        name: str,
        extra: Sequence[str] = (),
        apart: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._known = known
        self._extra = extra
        self._apart = apart

    @override
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split the names, and refuse an unknown one."""
        names = tuple(filter(None, (part.strip() for part in str(value).split(","))))
        for name in names:
            if name not in self._known and name not in self._extra:
                known = ", ".join((*self._extra, *self._known))
                self.fail(f"there is no {self.name} {name!r}; there are {known}", param, ctx)
        if not names and not self._extra:
            self.fail(f"name a {self.name}", param, ctx)
        if self._apart and set(self._apart) <= set(names):
            self.fail(f"run {' and '.join(self._apart)} in separate runs", param, ctx)
        return names


def _plan_options(command: Command) -> Command:
    """Add the options of the run's plan."""
    for option in reversed(
        (
            click.option(
                "--workload",
                "workloads",
                type=_Names(tuple(REGISTRY), "workload", apart=TWO_SERVICES),
                default="log",
                show_default=True,
                help=f"The requests of applications: {', '.join(REGISTRY)}; several with commas.",
            ),
            click.option(
                "--nemesis",
                "nemeses",
                type=_Names(tuple(NEMESES), "nemesis", (MIX,)),
                default=MIX,
                show_default=True,
                help="The faults; several with commas; 'mix' is every fault that the cluster "
                "allows, '' is none. See: chaos nemeses",
            ),
            click.option(
                "--minutes",
                default=5.0,
                show_default=True,
                type=FiniteRange(min=0.1),
                help="How long the workloads run.",
            ),
            click.option(
                "--seed", default=1, show_default=True, help="The seed of all random choices."
            ),
            click.option(
                "--together",
                default=3,
                show_default=True,
                type=click.IntRange(min=1),
                help="The largest number of faults at the same time.",
            ),
            click.option(
                "--unavailable-max",
                "unavailable_s",
                default=UNAVAILABLE_S,
                show_default=True,
                metavar="SECONDS",
                type=FiniteRange(min=0),
                help="How long a topic may acknowledge nothing while there is no fault; 0: not judged.",
            ),
            click.option(
                "--healing",
                "healing_s",
                default=HEALING_S,
                show_default=True,
                metavar="SECONDS",
                type=FiniteRange(min=0),
                help="How long after a fault a silence does not count.",
            ),
        )
    ):
        command = option(command)
    return command


def _own_cluster_options(command: Command) -> Command:
    """Add the options of a cluster that the run starts."""
    for option in reversed(
        (
            click.option(
                "--nodes",
                default=3,
                show_default=True,
                type=click.IntRange(min=1),
                help="Number of nodes, without the spare one.",
            ),
            click.option(
                "--zookeepers",
                default="1",
                show_default=True,
                type=click.Choice(["1", "3"]),
                help="Number of ZooKeeper servers.",
            ),
            click.option(
                "--hbase",
                default="one-jvm",
                show_default=True,
                type=click.Choice(["one-jvm", "distributed"]),
                help="One process with its own ZooKeeper; or several processes, which can be killed.",
            ),
            click.option(
                "--standalone",
                is_flag=True,
                help="Start one broker over LevelDB instead, on its own small disk, under strace.",
            ),
            click.option(
                "--mutant",
                default="",
                type=click.Choice(["", *sorted(mutants.NAMES)]),
                help="Start nodes without this guard, to see which violations follow.",
            ),
        )
    ):
        command = option(command)
    return command


def _splittable(_: click.Context, __: click.Parameter, command: str | None) -> str | None:
    """Refuse a hook that can't be split into words."""
    try:
        shlex.split(command or "")
    except ValueError as error:
        raise click.BadParameter(f"{command}: {error}") from error
    return command


def _addresses(_: click.Context, __: click.Parameter, target: str | None) -> list[str] | None:
    """Refuse addresses that no client can have."""
    try:
        return None if target is None else addresses(target)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _checked_token_file(_: click.Context, __: click.Parameter, file: str) -> str:
    if file:
        told(read_secret)(file)
    return file


def _given_cluster_options(command: Command) -> Command:
    """Add the options of a cluster that runs already."""
    for option in reversed(
        (
            click.option(
                "--target",
                metavar="URL,URL",
                help="A cluster that runs already, by the addresses of its nodes.",
                callback=_addresses,
            ),
            click.option(
                "--token-file",
                default="",
                metavar="FILE",
                help="A file with a token for that cluster (mode 0600).",
                callback=_checked_token_file,
            ),
            *(
                click.option(
                    f"--{verb}-cmd",
                    f"{verb}_cmd",
                    metavar="COMMAND",
                    help=f"The command to {verb} a node; the verifier fills in {{node}}, {{url}}, {{host}}.",
                    callback=_splittable,
                )
                for verb in Hooks._fields
            ),
            click.option(
                "--session-s",
                default=4.0,
                show_default=True,
                type=FiniteRange(min=0.1),
                help="ZooKeeper's session time-out in that cluster; it sets the length of pauses.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@_plan_options
@_own_cluster_options
@_given_cluster_options
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of this run.  [default: a new one in {STORE}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def run(  # noqa: PLR0913, PLR0917 - Click passes each option as a parameter.
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
    target: list[str] | None,
    token_file: str,
    session_s: float,
    directory: Path | None,
    as_json: bool,
    **hooks: str | None,
) -> None:
    """Run workloads during faults, heal the cluster, read everything, and judge.

    Without --target, the verifier starts a cluster, with a proxy between every pair of processes. With
    --target, it makes only the faults that the hooks allow or that any client can make.

    \b
    python -m chaos run --workload log --nemesis pause,partition --minutes 5 --seed 7
    python -m chaos run --workload log,transactions --minutes 20
    python -m chaos run --nemesis region-server,gateway --hbase distributed --minutes 5
    python -m chaos run --workload rowlog --nemesis kill,pause,gateway --hbase distributed --nodes 1
    python -m chaos run --standalone --nemesis power-cut,torn-tail,disk-full,flipped-bit --minutes 2
    python -m chaos run --target http://10.0.0.1:8080,http://10.0.0.2:8080 --nemesis leaders --token-file chaos.token
    python -m chaos run --target http://10.0.0.1:8080,http://10.0.0.2:8080 --nemesis kill \\
      --kill-cmd 'ssh {host} systemctl kill --signal=KILL broker' \\
      --start-cmd 'ssh {host} systemctl start broker'
    """  # noqa: D301
    below = sorted(BENEATH.intersection(workloads))
    if below and (standalone or target is not None):
        raise click.UsageError(
            f"the workload {', '.join(below)} uses HBase and ZooKeeper directly, so it needs a cluster that "
            "the run starts: leave out --target and --standalone"
        )
    _refuse_ignored("target" if target is not None else "standalone" if standalone else "")
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
    try:
        folder = RunFolder(directory or STORE / name)
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise click.UsageError(told) from error
    if target is not None:
        commands = {key.removesuffix("_cmd"): command for key, command in hooks.items()}
        given = GivenTarget(target, Hooks(**commands), session_s=session_s, token_file=token_file)
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


def _refuse_ignored(kind: str) -> None:
    """Refuse options that have no effect on a cluster of this kind, "" for a new one. Raises UsageError."""
    context = click.get_current_context()
    hooks = [f"{verb}_cmd" for verb in Hooks._fields]
    sizes = ("nodes", "zookeepers", "hbase")
    ignored, why = {
        "target": ((*sizes, "standalone", "mutant"), "a cluster that the run starts: no --target"),
        "standalone": ((*hooks, "token_file", "session_s", *sizes), "a cluster: no --standalone"),
        "": ((*hooks, "token_file", "session_s"), "a cluster that runs already: it needs --target"),
    }[kind]
    for name in ignored:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {why}")
    given = {verb for verb in Hooks._fields if context.params[f"{verb}_cmd"]}
    others = ("start", "kill", "kill", "resume", "pause")
    for verb, other in zip(Hooks._fields, others, strict=True):
        if verb in given and other not in given:
            raise click.UsageError(f"--{verb}-cmd has no effect without --{other}-cmd")


def _on_own(cluster: ChaosCluster | Standalone, plan: RunPlan, folder: RunFolder) -> Judged:
    """Start a cluster, run on it, and keep the logs of its processes."""
    try:
        with cluster as target:
            try:
                return asyncio.run(_run(target, plan, folder))
            finally:
                folder.keep_logs(cluster.logs)
    except (ServerFailed, ServerMissing) as error:
        raise NotJudged(f"the cluster did not start: {error}") from error


async def _run(target: Target, plan: RunPlan, folder: RunFolder) -> Judged:
    """Run the plan. The first Ctrl-C ends the run early, the second kills it, the third leaves nodes as they are."""
    running = Run(target, plan, folder, say)
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    assert this is not None

    def interrupt() -> None:
        if running.interrupted.is_set():
            loop.remove_signal_handler(signal.SIGINT)
            this.cancel()
        else:
            say("ending the run early; press Ctrl-C again to kill it")
            running.interrupted.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    # Rowlogs run in this process, and their log lines are for people, like those of ``say``.
    with logs.writing(LogsConfig(log_level=LogLevel.WARNING)):
        try:
            return await running.run()
        except asyncio.CancelledError:
            await _release(target)
            raise click.Abort from None
        except Exception:
            await _release(target)
            raise


async def _release(target: Target) -> None:
    """End all faults that would outlast the verifier."""
    faults = asyncio.all_tasks() - {asyncio.current_task()}
    for task in faults:
        task.cancel()
    await asyncio.gather(*faults, return_exceptions=True)
    try:
        for done in await target.release():
            say(f"mended: {done}")
    except ServerFailed as error:
        say(f"some nodes are still paused or killed: {error}")
