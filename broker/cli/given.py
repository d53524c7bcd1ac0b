"""What a command line has given so far: for errors that speak of it, and for completion."""

from __future__ import annotations

from dataclasses import dataclass, field

import click

from broker.cli.contexts import BrokerTarget
from broker.model import TopicId


@dataclass(slots=True)
class GivenOptions:
    """Filled while the words are read, one for each run of the command line.

    Attributes:
        as_json: whether machines read what is written.
        command: the command's words, such as ``topics create``.
        topics: the topics that were named.
        target: the broker that is spoken to; None before its address is known, and for commands without one.
        typed_context: the context that was typed, and typed_url the address.
        typed_url: see there.
    """

    as_json: bool = False
    command: str = ""
    topics: list[TopicId] = field(default_factory=list)
    target: BrokerTarget | None = None
    typed_context: str = ""
    typed_url: str = ""

    @property
    def topic_name(self) -> str:
        """The topic, if it is one that was named, else a place for its name."""
        names = {f"{topic.namespace}/{topic.topic}" for topic in self.topics}
        return names.pop() if len(names) == 1 else "NS/TOPIC"


def given(context: click.Context | None = None) -> GivenOptions:
    """Return what was given so far; nothing outside of a command."""
    context = context or click.get_current_context(silent=True)
    return GivenOptions() if context is None else context.find_root().ensure_object(GivenOptions)
