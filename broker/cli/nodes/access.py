"""``broker access``: who may do what, and how much."""

from __future__ import annotations

import click

from broker.cli.nodes.quota_commands import quotas


@click.group()
def access() -> None:
    """Say who may do what, and how much.

    \b
    broker access quotas list
    """


access.add_command(quotas)
