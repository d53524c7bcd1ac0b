"""The command ``broker``: its groups of commands, and what an error looks like.

Exit codes::

    0    done
    1    refused, or failed: nothing was changed
    2    the command line is wrong
    3    outcome unknown: it may have been done
    4    the broker can't be reached, or can't do it now; trying later may help
    130  interrupted by Ctrl-C
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import click

from broker import __version__
from broker.cli import chaos, cluster, node, publishing, reading, storage, topics
from broker.cli.options import NotNow
from broker.config import ConfigError
from broker.errors import BrokerError, Unavailable, UnavailableError

FAILED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3
UNAVAILABLE: Final = 4
INTERRUPTED: Final = 130

ADVICE: Final = {
    "topic_not_found": "Create it with: broker topics create NS/TOPIC",
    "topic_exists": "See it with: broker topics show NS/TOPIC",
    "bad_name": "Topics are named NAMESPACE/TOPIC.",
    "body_too_large": "Publish less at a time, or raise the broker's --body-bytes-max.",
    "too_many_messages": "Publish fewer messages at a time.",
    "outcome_unknown": "Look with: broker browse NS/TOPIC --desc. "
    "With --key, the same command can be repeated safely.",
    "no_leader": "Does a broker run there? Start one with: broker serve. Name another with --url.",
    "overloaded": "Try again a little later.",
    "storage_full": "Free some space on the broker's disk; publishing goes on by itself.",
    "storage_corrupt": "See what is wrong with: broker storage verify DIR",
    "not_found": "For the nodes of a cluster see: broker cluster status. Another kind of server, or an older "
    "one, may not know that request.",
}


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 outcome unknown, "
        "4 not available now, 130 interrupted."
    ),
)
@click.version_option(__version__, prog_name="broker")
def cli() -> None:
    """Publish to and read from topics; serve them.

    \b
    broker serve                            # a broker on this machine
    broker topics create audit/logins
    broker publish audit/logins 'alice logged in'
    broker tail audit/logins --since 1h
    """  # noqa: D301 - Click's mark for a paragraph that must not be wrapped.


for command in (
    topics.topics,
    publishing.publish,
    reading.tail,
    reading.poll,
    reading.browse,
    reading.stats,
    node.serve,
    node.config,
    storage.storage,
    cluster.cluster,
    chaos.chaos,
):
    cli.add_command(command)


def exit_code(error: BrokerError) -> int:
    """Return the exit code of an error."""
    if error.outcome == "unknown":
        return UNKNOWN
    return UNAVAILABLE if isinstance(error, UnavailableError) else FAILED


def explain(error: BrokerError, *, as_json: bool, by_broker: bool = True) -> str:
    """Return what standard error says about an error.

    ``by_broker`` False: no broker was asked, so there is nothing to say of how to reach one.
    """
    if as_json:
        return json.dumps(
            {
                "code": error.code,
                "message": error.message,
                "retriable": error.retriable,
                "outcome": error.outcome,
            }
        )
    advice = ADVICE.get(error.code) if by_broker or error.code != Unavailable.code else None
    return f"broker: {error.message}" + (f"\n{advice}" if advice else "")


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    sys.exit(_guarded(lambda: _invoke(words), as_json="--json" in words))


def _invoke(words: list[str]) -> int:
    # Not cli.main, which takes some errors for its own, in ways that differ between releases.
    with cli.make_context("broker", list(words)) as context:
        cli.invoke(context)
    return 0


def _guarded(work: Callable[[], int], *, as_json: bool) -> int:  # noqa: PLR0911 - A table.
    """Run the work; every way in which it can end becomes an exit code."""
    try:
        code = work()
        sys.stdout.flush()
    except click.exceptions.Exit as left:  # After --help, for example.
        return left.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)  # Ends the line on which the terminal shows ^C.
        return INTERRUPTED
    except NotNow as problem:
        click.echo(explain(problem.error, as_json=as_json, by_broker=False), err=True)
        return exit_code(problem.error)
    except BrokerError as error:
        click.echo(explain(error, as_json=as_json), err=True)
        return exit_code(error)
    except ConfigError as error:
        click.echo(f"broker: {error}", err=True)
        return USAGE
    except BrokenPipeError:
        return _read_enough()
    except OSError as error:
        click.echo(f"broker: {error}", err=True)
        return FAILED
    return code


def _read_enough() -> int:
    """End well: whoever read has seen enough. Python must not find that out once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 0
