"""``broker topics``, ``broker namespaces``, ``broker stats`` and ``broker purge``.

Properties of a topic are arguments NAME=VALUE. The broker keeps any property, as CDAP's TMS does. So it would store a
misspelt ``tl=5``, which has no effect, and the messages would live as long as before. A command therefore takes only
the names that the broker knows, unless the user gives ``--any-property``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import click
from click.shell_completion import CompletionItem

from broker.cli.command import completion
from broker.cli.command.broker_calls import Json, asks
from broker.cli.command.contexts import given
from broker.cli.command.options import (
    Command,
    flag,
    name_and_value,
    place_now,
    told,
    topic_argument,
    ttl_option,
)
from broker.cli.command.output import write_line, write_properties
from broker.client import SyncClient, TopicInfo
from broker.model import TopicId
from broker.moments import time_text, whole_s
from broker.wire.topics import GENERATION, PURGED, TRANSACTIONS, TTL

PROPERTY: Final = "NAME=VALUE"
KNOWN: Final = (TTL, TRANSACTIONS)
"""The properties that have an effect in the broker and can be set."""

Moment = int | Literal["now"]
"""ms since 1970, or the word ``now``."""


def _json(info: TopicInfo) -> dict[str, object]:
    return {
        "topic": "/".join(info.id),
        "generation": info.generation,
        "ttl_s": info.ttl_s,
        "properties": dict(info.properties),
    }


def _write_names(names: Iterable[str]) -> None:
    for name in names:
        write_line(name)


def _namespaces(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in completion.namespaces(given(context), incomplete)]


@click.command()
@asks(_write_names)
def namespaces(client: SyncClient) -> list[str]:
    """List the namespaces that have topics.

    \b
    broker namespaces
    """
    return client.namespaces()


@click.group()
def topics() -> None:
    """Create, show, change and delete topics.

    \b
    broker topics create audit/logins --ttl 1d
    broker topics list
    broker topics set audit/logins transactions=refused
    """


def _with_properties(command: Command) -> Command:
    """Add the arguments NAME=VALUE and their options; ``_wanted`` reads them."""
    ttl = ttl_option("The lifetime of a message: seconds, or 30m, 12h, 1d, 2w.")
    any_property = flag(
        "--any-property",
        f"Accept any property, not only {' and '.join(KNOWN)}; the broker stores the others, unused.",
    )
    pairs = click.argument("properties", nargs=-1, metavar=f"[{PROPERTY}]...")
    return pairs(any_property(ttl(command)))


def _wanted(properties: Sequence[str], ttl_s: int | None, *, any_property: bool) -> dict[str, str]:
    """Return the properties of the arguments and of ``--ttl``. Raises click.UsageError."""
    wanted = properties_of(properties, any_property=any_property)
    if ttl_s is None:
        return wanted
    if TTL in wanted:
        raise click.UsageError("ttl is given twice: by --ttl and as a property")
    return {**wanted, TTL: str(ttl_s)}


@topics.command()
@topic_argument
@_with_properties
@flag("--keep", "If the topic exists, keep it as it is.")
@asks()
def create(
    client: SyncClient, topic: TopicId, keep: bool, **given_properties: Any
) -> Callable[[], Json]:
    """Create a topic, with properties if you give some.

    \b
    broker topics create audit/logins
    broker topics create jobs/states --ttl 1h transactions=required
    """
    client.create_topic(topic, _wanted(**given_properties), if_exists="keep" if keep else "raise")
    return lambda: _json(client.topic(topic))


@topics.command(name="list")
@click.argument("namespace", required=False, shell_complete=_namespaces)
@asks(_write_names)
def list_(client: SyncClient, namespace: str | None) -> list[str]:
    """List topics: of NAMESPACE, else of the context's namespace, else of all namespaces.

    \b
    broker topics list
    broker topics list audit
    """
    target = given().target
    wanted = namespace or (target.namespace if target is not None else "")
    return [
        f"{each}/{topic}"
        for each in ([wanted] if wanted else client.namespaces())
        for topic in client.topics(each)
    ]


@topics.command()
@topic_argument
@asks(lambda shown: write_properties(shown["properties"]))
def show(client: SyncClient, topic: TopicId) -> dict[str, object]:
    """Show a topic's properties and generation.

    \b
    broker topics show audit/logins
    """
    return _json(client.topic(topic))


@topics.command(name="set")
@topic_argument
@_with_properties
@flag("--replace", "Reset all other properties to their defaults.")
@asks()
def set_(
    client: SyncClient, topic: TopicId, replace: bool, **given_properties: Any
) -> Callable[[], Json]:
    """Change properties of a topic; the other properties stay as they are.

    The command reads all properties and writes all of them back. So it may overwrite a change that another
    user makes at the same time.

    \b
    broker topics set audit/logins --ttl 1d
    broker topics set audit/logins transactions=required
    """
    changed = _wanted(**given_properties)
    if not changed and not replace:
        raise click.UsageError(f"Name a property to change: --ttl, or {PROPERTY}")
    kept = {} if replace else dict(client.topic(topic).properties)
    for name in (GENERATION, PURGED):  # Only the broker sets these.
        kept.pop(name, None)
    client.set_topic(topic, {**kept, **changed})
    return lambda: _json(client.topic(topic))


@topics.command()
@topic_argument
@asks(question="Delete {topic} and all its messages?")
def delete(client: SyncClient, topic: TopicId) -> dict[str, str]:
    """Delete a topic and all its messages.

    \b
    broker topics delete audit/logins --yes
    """
    client.delete_topic(topic)
    return {"deleted": "/".join(topic)}


def properties_of(pairs: Sequence[str], *, any_property: bool) -> dict[str, str]:
    """Read NAME=VALUE arguments. Raises click.BadParameter for a wrong form or a name without effect."""
    properties: dict[str, str] = {}
    for pair in pairs:
        name, value = name_and_value(pair)
        _check_name(name, any_property=any_property)
        if name == TTL:
            value = str(told(whole_s, f"{TTL}: ")(value))
        if name in properties:
            raise click.BadParameter(f"{name} is given twice")
        properties[name] = value
    return properties


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


def _figure(value: object) -> str:
    if not isinstance(value, dict):
        return "none" if value is None else str(value)
    if set(value) == {"value", "estimate"}:
        return f"{value['value']}" + (" (estimate)" if value["estimate"] else "")
    return ", ".join(f"{name} {part}" for name, part in value.items())


@click.command()
@topic_argument
@asks(lambda told: write_properties({name: _figure(value) for name, value in told.items()}))
def stats(client: SyncClient, topic: TopicId) -> Json:
    """Show a topic's figures: messages, bytes, first and last message, rates.

    \b
    broker stats audit/logins
    """
    return client.stats(topic)


def moment_of(text: str) -> Moment:
    """Read the moment of a purge: a time, an age, or ``now``. Raises click.BadParameter.

    ``now`` stays a word, so that the broker's own clock decides.
    """
    if text == "now":
        return "now"
    place = told(place_now)(text)
    if not isinstance(place, int):
        raise click.BadParameter(
            "a purge takes no message id: name a time, an age such as 30d, or now"
        )
    return place


def _purge_question(topic: TopicId, before: Moment) -> str:
    name = "/".join(topic)
    which = (
        f"all messages of {name}"
        if before == "now"
        else f"the messages of {name} published before {time_text(before)}"
    )
    return f"Remove {which}? This can't be undone."


@click.command()
@topic_argument
@click.option(
    "--before",
    type=moment_of,
    metavar="TIME|AGE|now",
    required=True,
    help="Remove messages published before: an age (30d), a time, or now for all messages.",
)
@asks("{topic} now begins at {purged_before}", question=_purge_question)
def purge(client: SyncClient, topic: TopicId, before: Moment) -> Json:
    """Remove, for ever, a topic's messages that were published before a moment.

    After the answer no node shows them. The broker's sweeper frees their space on the disk later, a page
    (2 MiB) at a time.

    \b
    broker purge audit/logins --before 30d
    broker purge audit/logins --before 2026-01-31T12:00:00Z --yes
    broker purge audit/logins --before now
    """
    purged_ms = client.purge(topic, before)
    return {
        "topic": "/".join(topic),
        "purged_before": time_text(purged_ms),
        "purged_ms": purged_ms,
    }
