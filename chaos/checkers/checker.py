"""What a checker of one topic is: it is told each line once, in order, and says what is wrong.

Checkers share the facts of their topic (see ``facts``), which know a line before the checkers do, and
keep nothing that grows with the history but in tables.
"""

from __future__ import annotations

from chaos.checkers.facts import TopicFacts
from chaos.checkers.history_rows import Read
from chaos.checkers.violations import Findings, Promises
from chaos.history import Operation


class Checker:
    """Judges one topic. Each method does nothing unless a checker needs it."""

    names: tuple[str, ...] = ()
    """What it can find."""

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin with a topic of which nothing is known."""
        self.topic = topic
        self.found = found
        self.promises = promises

    def began(self, call: Operation) -> None:
        """Take note that something was asked."""

    def ended(self, call: Operation) -> None:
        """Take note of an answer of any kind."""

    def read(self, read: Read, life: int) -> None:
        """Take note of what an acknowledged read showed; ``life`` may be UNSURE."""

    def cut(self) -> None:
        """Judge what can be judged when a segment of the history ends."""

    def over(self) -> None:
        """Judge what can be judged only when everything was seen."""
