"""``broker topics``: create, list, show, set, delete; and ``broker namespaces``."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from broker.cli import completion
from broker.cli.given_options import given
from broker.cli.options import (
    confirm,
    connect,
    to_broker,
    topic_argument,
    ttl_option,
    yes_option,
)
from broker.cli.output import write_json, write_line, write_properties
from broker.cli.properties import PROPERTY, properties_of, property_arguments
from broker.client import TopicInfo
from broker.model import TopicId
from broker.wire.topics import GENERATION, PURGED, TTL


def _json(info: TopicInfo) -> dict[str, object]:
    return {
        "topic": f"{info.id.namespace}/{info.id.topic}",
        "generation": info.generation,
        "ttl_s": info.ttl_s,
        "properties": dict(info.properties),
    }


def _namespaces(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in completion.namespaces(given(context), incomplete)]


@click.command()
@to_broker
def namespaces(url: str, deadline_s: float, as_json: bool) -> None:
    """List the namespaces that have topics.

    \b
    broker namespaces
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        names = client.namespaces()
    if as_json:
        write_json(names)
        return
    for name in names:
        write_line(name)


@click.group()
def topics() -> None:
    """Create, show, change and delete topics.

    \b
    broker topics create audit/logins --ttl 1d
    broker topics list
    broker topics set audit/logins transactions=refused
    """  # noqa: D301


def _wanted(pairs: tuple[str, ...], ttl_s: int | None, *, any_property: bool) -> dict[str, str]:
    """Return the properties of the arguments and of ``--ttl``. Raises click.UsageError."""
    wanted = properties_of(pairs, any_property=any_property)
    if ttl_s is None:
        return wanted
    if TTL in wanted:
        raise click.UsageError("ttl is given twice: by --ttl and as a property")
    return {**wanted, TTL: str(ttl_s)}


@topics.command()
@topic_argument
@property_arguments
@ttl_option("The lifetime of a message: seconds, or 30m, 12h, 1d, 2w.")
@click.option("--keep", is_flag=True, help="If the topic exists, keep it as it is.")
@to_broker
def create(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    properties: tuple[str, ...],
    any_property: bool,
    ttl_s: int | None,
    keep: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Create a topic, with properties if you give some.

    \b
    broker topics create audit/logins
    broker topics create jobs/states --ttl 1h transactions=required
    """  # noqa: D301
    wanted = _wanted(properties, ttl_s, any_property=any_property)
    with connect(url, deadline_s) as client:
        client.create_topic(topic, wanted, if_exists="keep" if keep else "raise")
        if as_json:
            write_json(_json(client.topic(topic)))


@topics.command(name="list")
@click.argument("namespace", required=False, shell_complete=_namespaces)
@to_broker
def list_(namespace: str | None, url: str, deadline_s: float, as_json: bool) -> None:
    """List topics: of NAMESPACE, else of the context's namespace, else of all namespaces.

    \b
    broker topics list
    broker topics list audit
    """  # noqa: D301
    target = given().target
    wanted = namespace or (target.namespace if target is not None else "")
    with connect(url, deadline_s) as client:
        names = [
            f"{each}/{topic}"
            for each in ([wanted] if wanted else client.namespaces())
            for topic in client.topics(each)
        ]
    if as_json:
        write_json(names)
        return
    for name in names:
        write_line(name)


@topics.command()
@topic_argument
@to_broker
def show(topic: TopicId, url: str, deadline_s: float, as_json: bool) -> None:
    """Show a topic's properties and generation.

    \b
    broker topics show audit/logins
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        info = client.topic(topic)
    if as_json:
        write_json(_json(info))
    else:
        write_properties(info.properties)


@topics.command(name="set")
@topic_argument
@property_arguments
@ttl_option("The lifetime of a message: seconds, or 30m, 12h, 1d, 2w.")
@click.option("--replace", is_flag=True, help="Reset all other properties to their defaults.")
@to_broker
def set_(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    properties: tuple[str, ...],
    any_property: bool,
    ttl_s: int | None,
    replace: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Change properties of a topic; the other properties stay as they are.

    The command reads all properties and writes all of them back. So it may overwrite a change that another
    user makes at the same time.

    \b
    broker topics set audit/logins --ttl 1d
    broker topics set audit/logins transactions=required
    """  # noqa: D301
    changed = _wanted(properties, ttl_s, any_property=any_property)
    if not changed and not replace:
        raise click.UsageError(f"Name a property to change: --ttl, or {PROPERTY}")
    with connect(url, deadline_s) as client:
        kept = {} if replace else dict(client.topic(topic).properties)
        for name in (GENERATION, PURGED):  # Only the broker sets these.
            kept.pop(name, None)
        client.set_topic(topic, {**kept, **changed})
        if as_json:
            write_json(_json(client.topic(topic)))


@topics.command()
@topic_argument
@yes_option
@to_broker
def delete(topic: TopicId, yes: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Delete a topic and all its messages.

    \b
    broker topics delete audit/logins --yes
    """  # noqa: D301
    name = f"{topic.namespace}/{topic.topic}"
    confirm(f"Delete {name} and all its messages?", yes=yes, as_json=as_json)
    with connect(url, deadline_s) as client:
        client.delete_topic(topic)
    if as_json:
        write_json({"deleted": name})
