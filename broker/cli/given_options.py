"""The values that the command line has given so far, for error messages and for completion."""

from __future__ import annotations

from dataclasses import dataclass, field

import click

from broker.cli.contexts import BrokerTarget
from broker.model import TopicId


@dataclass(slots=True)
class GivenOptions:
    """The values of one run of the command line; click's callbacks fill them in while it parses.

    Attributes:
        as_json: whether the output is JSON.
        command: the command's words, such as ``topics create``.
        topics: the topics that were named.
        target: the command's broker; None before its address is known, and for commands without a broker.
        typed_context: the value of ``--context``, if it was typed.
        typed_url: the value of ``--url``, if it was typed.
    """

    as_json: bool = False
    command: str = ""
    topics: list[TopicId] = field(default_factory=list)
    target: BrokerTarget | None = None
    typed_context: str = ""
    typed_url: str = ""

    @property
    def topic_name(self) -> str:
        """The topic's name if exactly one topic was named, else the placeholder ``NS/TOPIC``."""
        names = {f"{topic.namespace}/{topic.topic}" for topic in self.topics}
        return names.pop() if len(names) == 1 else "NS/TOPIC"


def given(context: click.Context | None = None) -> GivenOptions:
    """Return the values given so far; outside of a command they are empty."""
    context = context or click.get_current_context(silent=True)
    return GivenOptions() if context is None else context.find_root().ensure_object(GivenOptions)
