"""The command line of the verifier: ``broker chaos …`` and ``python -m chaos …``.

Exit codes::

    0    valid: enough faults and operations, and no violation
    1    invalid: the verdict names the violations
    2    unknown: too few faults or operations for a verdict; or there is no cluster, the command line is
         wrong, or the verifier failed
    130  interrupted twice, or while the cluster was starting
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from typing_extensions import override

from broker.standard_streams import OutputFailed, drop_output
from chaos.cases.commands import case, cases
from chaos.commands import run
from chaos.nemeses import NEMESES
from chaos.run_folder import Judged, read_verdict, runs_below, together
from chaos.verdict_text import NotJudged, say, tell, write

_HELP: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
INTERRUPTED: Final = 130


class _Verifier(click.Group):
    """Gives an error of the verifier itself the exit code of an unknown verdict, and an interruption its own.

    Python and click would exit with 1, which means violations.
    """

    @override
    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            say("interrupted; there is no verdict")
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # The reader of the output has gone, as ``head`` does.
            drop_output()
            raise click.exceptions.Exit(NotJudged.exit_code) from None
        except (click.exceptions.Exit, click.ClickException, OutputFailed):
            raise
        except Exception as error:
            traceback.print_exc()
            raise NotJudged(f"The verifier failed; this is no verdict: {error!r}") from error


@click.group(
    cls=_Verifier,
    context_settings=_HELP,
    epilog="Exit codes: 0 valid, 1 invalid, 2 unknown (too few faults or operations), no cluster, or wrong usage.",
)
def cli() -> None:
    """Break a cluster on purpose, and judge its answers to its clients.

    \b
    python -m chaos run --workload log --nemesis pause,partition --minutes 5 --seed 7
    python -m chaos run --workload log --nemesis mix --minutes 20
    python -m chaos run --target http://10.0.0.1:8080,http://10.0.0.2:8080 --minutes 5
    python -m chaos nemeses
    python -m chaos case zombie-leader
    python -m chaos sum chaos/store
    """  # noqa: D301 - Click does not wrap a paragraph after this mark.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line in this process, and exit."""
    try:
        try:
            cli.main(arguments if arguments is None else list(arguments), prog_name="chaos")
        finally:
            sys.stdout.flush()
    except OutputFailed as error:
        drop_output()
        say(f"{error.strerror}; there is no verdict")
        sys.exit(NotJudged.exit_code)


@cli.command("sum")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the sum as JSON.")
def sum_(directory: Path, as_json: bool) -> None:
    """Add up the verdicts of the runs in a folder.

    \b
    python -m chaos sum chaos/store
    python -m chaos sum chaos/store/20261121-071500-log --json
    """  # noqa: D301
    files = runs_below(directory)
    whole = together([_read(file) for file in files])
    whole.facts = {"runs": len(files)}
    tell(whole, None, as_json=as_json)


def _read(file: Path) -> Judged:
    try:
        return read_verdict(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotJudged(f"{file} is not a verdict: {error!r}") from error


@cli.command("nemeses")
def nemeses_() -> None:
    """List the faults, and the abilities of the cluster that each needs.

    \b
    python -m chaos nemeses
    """  # noqa: D301
    for name, make in NEMESES.items():
        nemesis = make()
        doc = (nemesis.__doc__ or "").splitlines()[0]
        needs = ", ".join(sorted(nemesis.needs)) or "any cluster"
        write(f"{name:24} {doc}  [{needs}]")


cli.add_command(run)
cli.add_command(case)
cli.add_command(cases)
