"""``broker completion``: the script by which a shell completes commands, options and topics.

The script asks this program for words whenever somebody presses Tab. Topics come from the broker, which has a
moment to answer: a line that is being typed must neither hang nor show an error.
"""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class, shell_complete

from broker.cli.given import Given
from broker.client import Settings, SyncClient
from broker.errors import BrokerError

VARIABLE: Final = "_BROKER_COMPLETE"
"""By this variable of the environment the script tells the program to complete words."""

SHELLS: Final = ("bash", "zsh", "fish")

TOPICS_S_MAX: Final = 1.0
"""How long the broker has to tell its topics."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and topics in a shell.

    \b
    broker completion bash > ~/.local/share/bash-completion/completions/broker
    broker completion zsh > ~/.zfunc/_broker     # a folder of zsh's $fpath
    broker completion fish > ~/.config/fish/completions/broker.fish
    """  # noqa: D301
    root = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"
    click.echo(made(root, {}, "broker", VARIABLE).source(), nl=False)


def complete(root: click.Command, instruction: str) -> int:
    """Answer the script of a shell; return the exit code."""
    return shell_complete(root, {"obj": Given()}, "broker", VARIABLE, instruction)


def topics(given: Given, incomplete: str) -> list[str]:
    """Return the topics that begin with what was typed, NAMESPACE/TOPIC; none if the broker is not there."""
    target = given.target
    if target is None:
        return []
    namespace, slash, begun = incomplete.partition("/")
    if not slash:
        namespace, begun = target.namespace, incomplete
    if not namespace:
        return []
    try:
        settings = Settings(url=target.url, ca_file=target.ca_file, deadline_s=TOPICS_S_MAX)
        with SyncClient(settings=settings, connect_timeout_s=TOPICS_S_MAX) as client:
            names = client.topics(namespace)
    except (BrokerError, OSError, ValueError):
        return []  # Nobody can read an error in the middle of a line that is being typed.
    written = f"{namespace}/" if slash else ""
    return [f"{written}{name}" for name in names if name.startswith(begun)]
