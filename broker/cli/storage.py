"""``broker storage``: look after a data directory while no broker serves it."""

from __future__ import annotations

import click


@click.group()
def storage() -> None:
    """Look after a data directory while no broker serves it."""
