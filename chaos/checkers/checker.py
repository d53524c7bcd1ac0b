"""The base class of the checkers of one topic.

A checker gets each line of the history once, in order, and reports violations. All checkers of a topic
share its facts (see ``facts``). The judge updates the facts before it calls the checkers. A checker keeps
everything that grows with the history in tables.
"""

from __future__ import annotations

from chaos.checkers.facts import TopicFacts
from chaos.checkers.history_rows import Read
from chaos.checkers.violations import Findings, Promises
from chaos.history import Operation


class Checker:
    """Judges one topic. Each method does nothing unless a checker needs it."""

    names: tuple[str, ...] = ()
    """The names of the violations that it can find."""

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin before the first line of the topic."""
        self.topic = topic
        self.found = found
        self.promises = promises

    def began(self, call: Operation) -> None:
        """Take the beginning of a call."""

    def ended(self, call: Operation) -> None:
        """Take the end of a call, with any outcome."""

    def read(self, read: Read, life: int) -> None:
        """Take an acknowledged read; ``life`` may be UNSURE."""

    def over(self) -> None:
        """Make the checks that need the whole history."""
