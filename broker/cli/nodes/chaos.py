"""``broker chaos``: run the verifier. It is a program of its own, which no package of the product imports."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Final

import click

from broker.cli.command.contexts import given
from broker.errors import install_command

VERIFIER: Final = "chaos"
NEEDED: Final = ("matplotlib", "kazoo", "libfaketime", "toxiproxy")
"""The packages that the extra installs; an error names the first missing one."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def chaos(words: tuple[str, ...]) -> None:
    """Inject faults into a cluster, and check the answers that its clients got.

    To see the options of a command of the verifier: broker chaos run --help

    \b
    broker chaos run --workload log --nemesis pause,partition --minutes 5 --seed 7
    broker chaos run --target http://10.0.0.1:8080,http://10.0.0.2:8080 --minutes 5
    broker chaos nemeses
    broker chaos sum chaos/store
    """
    for package in (VERIFIER, *NEEDED):
        if importlib.util.find_spec(package) is None:
            # Not 1: the verifier exits with 1 after violations.
            raise click.UsageError(
                f"the verifier needs the package {package!r} of the extra 'chaos': "
                f"{install_command('chaos')}"
            )
    if not words:
        words = ("--help",)
    elif given().as_json and "--json" not in words:
        words = (*words, "--json")  # It stood before the command's name.
    command = [sys.executable, "-m", VERIFIER, *words]
    os.execv(sys.executable, command)  # noqa: S606 - No shell is wanted.
