"""Properties of a topic as words of a command line: NAME=VALUE.

The broker keeps any property, as the original does. So ``tl=5`` would be stored and mean nothing, and the
messages would live for as long as before. A command takes the names that the broker knows, unless it is
told to take any.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from broker.wire.topics import GENERATION, PURGED, TRANSACTIONS, TTL

Command = TypeVar("Command", bound=Callable[..., Any])

PROPERTY: Final = "NAME=VALUE"
KNOWN: Final = (TTL, TRANSACTIONS)
"""The properties that mean something to the broker and can be set."""


def property_arguments(command: Command) -> Command:
    """Add the arguments NAME=VALUE and the option ``--any-property``."""
    option = click.option(
        "--any-property",
        is_flag=True,
        help=f"Take other properties than {' and '.join(KNOWN)}, too: the broker keeps them.",
    )
    return click.argument("properties", nargs=-1, metavar=f"[{PROPERTY}]...")(option(command))


def properties_of(pairs: Sequence[str], *, any_property: bool) -> dict[str, str]:
    """Read NAME=VALUE words. Raises click.BadParameter for what is none, or would mean nothing."""
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is not {PROPERTY}")
        _check_name(name, any_property=any_property)
        if name in properties:
            raise click.BadParameter(f"{name} is given twice")
        properties[name] = value
    return properties


def _check_name(name: str, *, any_property: bool) -> None:
    if name == GENERATION:
        raise click.BadParameter(f"{GENERATION} can't be set: the broker counts generations")
    if name == PURGED:
        raise click.BadParameter(f"{PURGED} can't be set: broker purge does that")
    if any_property or name in KNOWN:
        return
    near = difflib.get_close_matches(name, KNOWN, n=1)
    meant = f"did you mean {near[0]}?" if near else f"it knows {' and '.join(KNOWN)}."
    raise click.BadParameter(
        f"the broker knows no property {name!r}; {meant} To keep one of your own: --any-property"
    )
