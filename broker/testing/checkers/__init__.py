"""Checkers: what a history shows to be wrong.

Each is a function from the calls of one topic's history to violations, linear or n log n, because every
payload is unique and the order of the log is visible. A verdict is *valid* only if there was something
to check; ``check`` says *unknown* for a history without acknowledged publishes or without a final read.

The last read of a history whose process is ``final`` is the log as it ended: after healing, everything
that was acknowledged must be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.testing.checkers.log import (
    duplicated,
    id_reused,
    lost,
    phantom,
    reordered,
    torn,
    two_answers,
    two_epochs,
    written_after_delete,
)
from broker.testing.checkers.reads import (
    changed_read,
    cursor,
    floor_lowered,
    time_addressing,
    unreadable,
)
from broker.testing.checkers.transactions import payloads_changed, rolled_back
from broker.testing.checkers.violations import Verdict, Violation
from broker.testing.history import Call

Checker = Callable[[Sequence[Call]], list[Violation]]

ALL: tuple[Checker, ...] = (
    lost,
    duplicated,
    phantom,
    reordered,
    id_reused,
    torn,
    two_epochs,
    two_answers,
    written_after_delete,
    changed_read,
    cursor,
    time_addressing,
    unreadable,
    floor_lowered,
    rolled_back,
    payloads_changed,
)


def check(calls: Sequence[Call]) -> Verdict:
    """Run every checker over each topic of a history."""
    violations: list[Violation] = []
    for topic in sorted({call.topic for call in calls}):
        of_topic = [call for call in calls if call.topic == topic]
        for checker in ALL:
            violations += checker(of_topic)
    acknowledged = any(call.op == "publish" and call.is_ok for call in calls)
    ended = any(call.process == "final" and call.is_ok for call in calls)
    return Verdict(tuple(violations), is_known=acknowledged and ended)


__all__ = ["ALL", "Checker", "Verdict", "Violation", "check"]
