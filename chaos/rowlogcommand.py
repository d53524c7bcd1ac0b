"""``broker chaos rowlog``: a run of the workload rowlog (see ``rowlog``)."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

import click

from broker.testing.cluster import LocalCluster, Sizes
from chaos.rowlog import FAULTS, Done, Run


@click.command()
@click.option("--minutes", type=float, default=5.0, show_default=True, help="How long it runs.")
@click.option("--seed", type=int, help="Of all that is up to chance.  [default: a new one]")
@click.option(
    "--nemesis",
    default=",".join(FAULTS),
    show_default=True,
    help="Which faults, with commas between.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def rowlog(minutes: float, seed: int | None, nemesis: str, as_json: bool) -> None:
    """Break the processors of a rowlog, and what they stand on, and judge what they did.

    \b
    python -m chaos rowlog --minutes 5 --seed 7
    python -m chaos rowlog --nemesis kill,pause --minutes 2
    """  # noqa: D301 - Click's mark for a paragraph that must not be wrapped.
    faults = nemesis.split(",")
    if unknown := set(faults) - set(FAULTS):
        raise click.UsageError(f"no such fault: {', '.join(unknown)}")
    drawn = random.SystemRandom().getrandbits(31) if seed is None else seed
    click.echo(f"seed {drawn}", err=True)
    sizes = Sizes(nodes=1, region_servers=2, gateways=2)

    async def run(cluster: LocalCluster) -> Done:
        return await Run(cluster, drawn).run(minutes * 60, faults)

    with LocalCluster(sizes) as cluster:
        done = asyncio.run(run(cluster))
    _tell(done, drawn, as_json=as_json)
    if done.wrong:
        sys.exit(1)
    sys.exit(0 if done.puts and done.begun and sum(done.faults.values()) else 2)


def _tell(done: Done, seed: int, *, as_json: bool) -> None:
    told: dict[str, Any] = {"seed": seed, **done._asdict(), "valid": not done.wrong}
    if as_json:
        click.echo(json.dumps(told))
        return
    for line in done.wrong[:20]:
        click.echo(f"wrong: {line}")
    click.echo(
        f"{'valid' if not done.wrong else 'INVALID'}: {done.puts} puts, {done.unknown} refused or unknown, "
        f"{done.begun} calls of listeners, faults: {done.faults}"
    )
