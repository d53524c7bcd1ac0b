"""``broker completion``: print the script with which a shell completes commands, options and topics.

The script calls this program for words at each press of Tab. Topics come from the broker, which has one
second to answer: completion must neither hang nor show an error while the user types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from broker.cli.command.command_token import token_of
from broker.cli.command.contexts import GivenOptions, known
from broker.cli.command.contexts import given as given_options
from broker.client import Settings, SyncClient
from broker.config.sections import ConfigError
from broker.errors import BrokerError
from broker.escapes import escaped

VARIABLE: Final = "_BROKER_COMPLETE"
"""The environment variable by which the script asks this program to complete words."""

SHELLS: Final = ("bash", "zsh", "fish")

ANSWER_S_MAX: Final = 1.0
"""The time that the broker has to answer."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and topics in a shell.

    \b
    broker completion bash > ~/.local/share/bash-completion/completions/broker
    broker completion zsh > ~/.zfunc/_broker     # a folder of zsh's $fpath
    broker completion fish > ~/.config/fish/completions/broker.fish
    """
    if given_options().as_json:
        raise click.UsageError("completion writes a script; it has no --json.")
    root = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"
    click.echo(made(root, {}, "broker", VARIABLE).source(), nl=False)


def complete(root: click.Command, instruction: str) -> int:
    """Answer the script of a shell; return the exit code."""
    return shell_complete(root, {"obj": GivenOptions()}, "broker", VARIABLE, instruction)


def contexts(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of contexts that begin with the typed text."""
    try:
        names = known().contexts
    except (ConfigError, OSError):
        return []  # An error message would disturb the line that the user types.
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def topics(given: GivenOptions, incomplete: str) -> list[str]:
    """Return the topics that begin with the typed text.

    If several namespaces match, return them, each with a slash. If one matches, return its topics instead: a
    shell adds a space after a word that is the only choice, and the user could not go on with the topic.
    """
    namespace, slash, begun = incomplete.partition("/")
    if slash:
        return _topics_of(given, namespace, begun)
    own = given.target.namespace if given.target is not None else ""
    found = _answer_of(given, lambda client: client.topics(own)) if own else []
    short = [name for name in found if name.startswith(incomplete)]
    spaces = namespaces(given, incomplete)
    if len(spaces) == 1:
        return [*short, *_topics_of(given, spaces[0], "")]
    return [*short, *(f"{name}/" for name in spaces)]


def _topics_of(given: GivenOptions, namespace: str, begun: str) -> list[str]:
    names = _answer_of(given, lambda client: client.topics(namespace))
    return [f"{namespace}/{name}" for name in names if name.startswith(begun)]


def namespaces(given: GivenOptions, incomplete: str) -> list[str]:
    """Return the namespaces that begin with the typed text."""
    names = _answer_of(given, lambda client: client.namespaces())
    return [name for name in names if name.startswith(incomplete)]


def _answer_of(given: GivenOptions, ask: Callable[[SyncClient], list[str]]) -> list[str]:
    """Return the broker's answer; an empty list if it does not answer in ``ANSWER_S_MAX``."""
    if given.target is None:
        return []
    try:
        found = token_of(given)
        settings = Settings(
            url=given.target.url,
            ca_file=given.target.ca_file,
            token=found.token,
            token_file=found.token_file,
            deadline_s=ANSWER_S_MAX,
            connect_timeout_s=ANSWER_S_MAX,
        )
        with SyncClient(settings=settings) as client:
            return [escaped(name) for name in ask(client)]
    except (BrokerError, OSError, ValueError):
        return []  # An error message would disturb the line that the user types.
