"""The command ``broker``: its groups of commands. ``problems`` says how they end."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from broker import __version__
from broker.cli import context
from broker.cli.command import completion
from broker.cli.command.broker_calls import take_json
from broker.cli.command.contexts import GivenOptions
from broker.cli.command.problems import ending
from broker.cli.messages import (
    bench,
    cursors,
    dead_letters,
    poll,
    publish,
    topics,
    transactions,
    transfer,
)
from broker.cli.nodes import access, chaos, cluster, serve, storage, top
from broker.cli.rowlog import rowlog
from broker.cli.streams.commands import streams
from broker.standard_streams import guard_output


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
    """


for command in (
    topics.topics,
    topics.namespaces,
    publish.publish,
    poll.tail,
    poll.poll,
    poll.browse,
    topics.stats,
    topics.purge,
    cursors.cursors,
    dead_letters.dead_letters,
    transfer.export,
    transfer.import_,
    bench.bench,
    top.top,
    context.context,
    completion.completion,
    serve.serve,
    serve.config,
    storage.storage,
    rowlog,
    cluster.cluster,
    access.access,
    streams,
    transactions.tx,
    chaos.chaos,
):
    cli.add_command(command)
take_json(cli)


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    instruction = os.environ.get(completion.VARIABLE)
    if instruction and arguments is None:
        sys.exit(completion.complete(cli, instruction))
    if arguments is None:
        guard_output()
    given = GivenOptions(as_json=asks_for_json(words))
    sys.exit(ending(lambda: _invoke(words, given), given))


def asks_for_json(words: list[str]) -> bool:
    """Return whether ``--json`` is among the options.

    This is known before click parses the options, so that parse errors can be JSON, too.
    """
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


def _invoke(words: list[str], given: GivenOptions) -> int:
    # Not cli.main: it handles some errors itself, and how differs between releases of click.
    with cli.make_context("broker", list(words), obj=given) as root:
        cli.invoke(root)
    return 0
