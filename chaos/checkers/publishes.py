"""Checkers of the answers to publishes: ids, epochs and keys, against the order of real time.

Each needs one pass and little memory. It keeps the highest id that was answered before a call began. The
call's answer must be above it::

    A   ├────┤ id 7                     B began after answer 7, so its id must be above 7
    B           ├────┤ id 6             reordered
"""

from __future__ import annotations

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import TopicFacts
from chaos.checkers.history_rows import moment_ms, plain
from chaos.checkers.tables import LAST, ValueTable
from chaos.checkers.violations import Findings, Promises, spot
from chaos.history import Operation


class ToldOrder(Checker):
    """Find ids and epochs that contradict real time.

    If one publish was acknowledged before another began, its id is less. After an epoch has acknowledged a
    request, no lower epoch acknowledges a request that begins later.
    """

    names = ("reordered", "two_epochs")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin with no id and no epoch."""
        super().__init__(topic, found, promises)
        self._last = ""
        self._epoch = 0
        self._bounds: dict[int, tuple[str, int]] = {}

    @override
    def began(self, call: Operation) -> None:
        """Keep the highest id and epoch answered before this call."""
        if call.op == "publish":
            self._bounds[call.invoked] = self._last, self._epoch

    @override
    def ended(self, call: Operation) -> None:
        """Compare the answer with the id and epoch that ``began`` kept. A replayed answer may be older: skip it."""
        bounds = self._bounds.pop(call.invoked, None)
        if bounds is None or not call.is_ok or call.told.get("replayed"):
            return
        last, epoch = bounds
        first, final = plain(call.id or ""), plain(call.told.get("last") or call.id or "")
        payload = str(call.asked["payloads"][:1])
        if first and first <= last:
            detail = spot(payload, id=first, told_before=last)
            self.found.add("reordered", detail, call.ended)
        if call.epoch is not None and call.epoch < epoch:
            detail = spot(payload, epoch=call.epoch, after=epoch, node=call.node)
            self.found.add("two_epochs", detail, call.ended)
        self._last = max(self._last, final)
        self._epoch = max(self._epoch, call.epoch or 0)


class Answers(Checker):
    """Find idempotency keys with two different answers, and writes after the delete of a topic."""

    names = ("two_answers", "written_after_delete")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without answers."""
        super().__init__(topic, found, promises)
        self._answers = ValueTable[tuple[str | None, str | None]](topic.tables)

    @override
    def ended(self, call: Operation) -> None:
        """Compare the answer with the first one for the same key, and with the delete.

        A store after the delete is no violation: no consumer sees it before its reference, and the
        broker refuses the reference. A replayed answer may come at any time.
        """
        if not call.is_ok:
            return
        if call.op == "publish" and call.asked.get("key") and call.id:
            self._compare(call)
        is_written = call.op in ("publish", "reference", "rollback")
        if is_written and not call.told.get("replayed") and self.topic.lives.came_too_late(call):
            detail = spot(call.op, asked=call.asked)
            self.found.add("written_after_delete", detail, call.ended)

    def _compare(self, call: Operation) -> None:
        key, answer = call.asked["key"], (call.id, call.told.get("last"))
        first = self._answers.get(key)
        if first is None:
            self._answers.put(key, answer)
        elif first != answer:
            detail = spot(key, one=first, other=answer)
            self.found.add("two_answers", detail, call.ended)


class Deadlines(Checker):
    """Find messages that were stored long after their requests' deadlines.

    A request of unknown outcome has a deadline too: the client waits for it no longer, but the message
    must not appear at any later time.
    """

    names = ("stored_late",)

    @override
    def over(self) -> None:
        """Compare the moment in each id with the deadline of its request."""
        late_ms = self.promises.stored_late_ms
        if late_ms is None:
            return
        for payload, tried in self.topic.tried.between("", LAST):
            if tried.until_ms is None or not tried.id:
                continue
            by_ms = moment_ms(tried.id) - tried.until_ms
            if by_ms > late_ms:
                detail = spot(payload, id=tried.id, until_ms=tried.until_ms, late_by_ms=by_ms)
                self.found.add("stored_late", detail, tried.place)
