"""The text of a verdict, for the operator of the verifier."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from broker.escapes import escaped, escaped_lines
from chaos.run_folder import EXIT_CODES, Judged

DETAILS_TOLD: Final = 10


class NotJudged(click.ClickException):
    """There is no verdict. The exit code is that of an unknown one, because 1 would name violations."""

    exit_code = EXIT_CODES["unknown"]

    def __init__(self, message: str) -> None:
        super().__init__(escaped_lines(message))


def say(text: str) -> None:
    """Print lines for the operator at once; the texts of servers in them are escaped."""
    click.echo(escaped_lines(text), err=True)


def write(line: str) -> None:
    """Print a line of a result."""
    click.echo(escaped(line))


def tell(judged: Judged, folder: Path | None, *, as_json: bool) -> NoReturn:
    """Print a verdict, and exit with its code."""
    told = judged.as_json()
    if as_json:
        write(json.dumps(told))
    else:
        for name in ("operations", "faults", "left_out", "violations"):
            for key, value in sorted(told.get(name, {}).items()):
                write(f"{name:10}  {key}: {_words(value)}")
        for detail in told["details"][:DETAILS_TOLD]:
            write(f"{detail['name']}: {detail['detail']}")
        for why in told["unsure"]:
            write(f"unsure: {why}")
        if told["not_judged"]:
            write(f"not judged: {', '.join(told['not_judged'])}")
        write(
            f"{told['verdict']}: {told['acknowledged']} writes acknowledged in "
            f"{told['seconds']:g} s, {sum(judged.figures.happened.values())} faults, "
            f"longest without an acknowledgement {told['longest_unavailable_s']:g} s, "
            f"without a fault {told['longest_silent_when_well_s']:g} s"
        )
        if folder is not None:
            write(f"kept in {folder}")
    sys.exit(EXIT_CODES[judged.outcome])


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return str(value)
