"""The commands ``chaos case`` and ``chaos cases``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from broker.local import Sizes
from broker.local.servers import ServerFailed, ServerMissing
from chaos.cases import CASES, Case, CaseTarget, Played
from chaos.cases.play import play
from chaos.proxied_cluster import ChaosCluster
from chaos.verdict_text import NotJudged, say, write

DETAIL_TOLD_MAX: Final = 500
"""The number of characters of a violation's detail that the text shows; the JSON has all of them."""
SESSION_MS: Final = 4_000
"""So long that sessions do not expire only because the machine is busy."""


def _made(_: click.Context, __: click.Parameter, directory: Path | None) -> Path | None:
    """Make a folder, before any case is played."""
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{directory}: {error.strerror}") from error
    return directory


@click.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice([*CASES, "all"]))
@click.option("--mutant", is_flag=True, help="Play it without its guard: it must fail.")
@click.option(
    "--times",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Play each case this often; above 1, no history is kept.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for the histories and the nodes' logs.",
    callback=_made,
)
@click.option("--json", "as_json", is_flag=True, help="Print each verdict as a line of JSON.")
def case(
    names: Sequence[str], mutant: bool, times: int, directory: Path | None, as_json: bool
) -> None:
    """Play failure cases: each proves that its fault happened, and passes.

    \b
    python -m chaos case zombie-leader
    python -m chaos case zombie-leader --mutant              exit 1: the verdict names the violations
    python -m chaos case all                                 all cases, on one cluster
    """  # noqa: D301
    chosen = list(CASES.values()) if "all" in names else [CASES[name] for name in names]
    try:
        with _cluster_for(chosen, directory) as cluster:
            played = [
                _one(one, cluster, directory if times == 1 else None, mutant, as_json)
                for one in chosen
                for _ in range(times)
            ]
    except (ServerFailed, ServerMissing) as error:
        raise NotJudged(f"the cluster did not start: {error}") from error
    sys.exit(_exit_code(played))


def _exit_code(played: Sequence[Played]) -> int:
    """Return 1 if there are violations, else 2 if a result is unknown, else 0."""
    codes = {one.exit_code for one in played}
    return 1 if 1 in codes else max(codes)


@contextmanager
def _cluster_for(chosen: Sequence[Case], directory: Path | None) -> Iterator[ChaosCluster | None]:
    if all(one.where is not CaseTarget.CLUSTER for one in chosen):
        yield None
        return
    with ChaosCluster(
        Sizes(nodes=3, spares=1),
        settings={"cluster.session_timeout_ms": SESSION_MS},
        with_clocks=any(one.sets_clocks for one in chosen),
        folder=None if directory is None else directory / "cluster",
        report=say,
    ) as cluster:
        yield cluster


def _one(
    one: Case,
    cluster: ChaosCluster | None,
    directory: Path | None,
    mutant: bool,
    as_json: bool,
) -> Played:
    keep = None if directory is None else directory / one.name
    played = asyncio.run(play(one, cluster, mutant=one.mutant if mutant else "", keep=keep))
    told = played.as_json()
    if as_json:
        write(json.dumps(told))
        return played
    under = f" under {played.mutant}" if mutant else ""
    write(f"{one.name}{under}: {told['verdict']} in {told['seconds']} s")
    for fault, happened in played.faults.items():
        write(f"  {'happened' if happened else 'DID NOT HAPPEN'}: {fault}")
    write(f"  evidence: {json.dumps(played.evidence)}")
    if played.not_judged:
        write(f"  not judged: {', '.join(played.not_judged)}")
    for violation in played.violations[:5]:
        write(f"  {violation.name}: {violation.detail[:DETAIL_TOLD_MAX]}")
    if mutant and not played.is_as_expected:
        write(f"  NOT AS EXPECTED: none of {', '.join(sorted(one.violations))}")
    return played


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the cases as JSON.")
def cases(as_json: bool) -> None:
    """List the failure cases.

    \b
    python -m chaos cases
    python -m chaos cases --json
    """  # noqa: D301
    if as_json:
        write(json.dumps([one.as_json() for one in CASES.values()]))
        return
    for one in CASES.values():
        write(f"{one.number:2}  {one.name:22} {one.title}  [{one.mutant}]")
