"""Properties of a topic as arguments of a command: NAME=VALUE.

The broker keeps any property, as CDAP's TMS does. So it would store a misspelt ``tl=5``, which has no effect,
and the messages would live as long as before. A command therefore takes only the names that the broker knows,
unless the user gives ``--any-property``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from broker.cli.options import name_and_value
from broker.moments import whole_s
from broker.wire.topics import GENERATION, PURGED, TRANSACTIONS, TTL

Command = TypeVar("Command", bound=Callable[..., Any])

PROPERTY: Final = "NAME=VALUE"
KNOWN: Final = (TTL, TRANSACTIONS)
"""The properties that have an effect in the broker and can be set."""


def property_arguments(command: Command) -> Command:
    """Add the arguments NAME=VALUE and the option ``--any-property``."""
    option = click.option(
        "--any-property",
        is_flag=True,
        help=f"Accept any property, not only {' and '.join(KNOWN)}; the broker stores the others, unused.",
    )
    return click.argument("properties", nargs=-1, metavar=f"[{PROPERTY}]...")(option(command))


def properties_of(pairs: Sequence[str], *, any_property: bool) -> dict[str, str]:
    """Read NAME=VALUE arguments. Raises click.BadParameter for a wrong form or a name without effect."""
    properties: dict[str, str] = {}
    for pair in pairs:
        name, value = name_and_value(pair)
        _check_name(name, any_property=any_property)
        if name == TTL:
            value = _seconds(value)
        if name in properties:
            raise click.BadParameter(f"{name} is given twice")
        properties[name] = value
    return properties


def _seconds(text: str) -> str:
    """Return a ttl in seconds. Raises click.BadParameter."""
    try:
        return str(whole_s(text))
    except ValueError as error:
        raise click.BadParameter(f"{TTL}: {error}") from error


def _check_name(name: str, *, any_property: bool) -> None:
    if name == GENERATION:
        raise click.BadParameter(f"{GENERATION} can't be set: the broker counts generations")
    if name == PURGED:
        raise click.BadParameter(f"{PURGED} can't be set; use: broker purge")
    if any_property or name in KNOWN:
        return
    near = difflib.get_close_matches(name, KNOWN, n=1)
    meant = f"did you mean {near[0]}?" if near else f"it knows {' and '.join(KNOWN)}."
    raise click.BadParameter(
        f"the broker knows no property {name!r}; {meant} To keep a property of your own: --any-property"
    )
