"""Checkers of what publishers are told: ids, epochs, keys, against the order of real time.

Each needs one pass and a few words of memory: what was the highest when a call began is what its answer
must lie above::

    A   ├────┤ id 7                     B began when 7 was told: it must get more
    B           ├────┤ id 6             reordered
"""

from __future__ import annotations

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import TopicFacts
from chaos.checkers.history_rows import moment_ms, plain
from chaos.checkers.tables import LAST
from chaos.checkers.violations import Findings, Promises, spot
from chaos.history import Operation


class ToldOrder(Checker):
    """Find ids and epochs that contradict real time.

    If one publish was acknowledged before another was asked for, its id is less; and once an epoch has
    acknowledged, what is asked later is not acknowledged by a lower one.
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
        """Keep what was told before."""
        if call.op == "publish":
            self._bounds[call.invoked] = self._last, self._epoch

    @override
    def ended(self, call: Operation) -> None:
        """Compare with it. An answer that was given before is older than that."""
        bounds = self._bounds.pop(call.invoked, None)
        if bounds is None or not call.is_ok or call.told.get("replayed"):
            return
        last, epoch = bounds
        first, final = plain(call.id or ""), plain(call.told.get("last") or call.id or "")
        what = str(call.asked["payloads"][:1])
        if first and first <= last:
            detail = spot(what, id=first, told_before=last)
            self.found.add("reordered", detail, call.ended)
        if call.epoch is not None and call.epoch < epoch:
            detail = spot(what, epoch=call.epoch, after=epoch, node=call.node)
            self.found.add("two_epochs", detail, call.ended)
        self._last = max(self._last, final)
        self._epoch = max(self._epoch, call.epoch or 0)


class Answers(Checker):
    """Find keys that were answered with different ids, and answers after the end of a topic."""

    names = ("two_answers", "written_after_delete")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without answers."""
        super().__init__(topic, found, promises)
        self._answers = topic.tables.table(tuple)

    @override
    def ended(self, call: Operation) -> None:
        """Compare with the first answer.

        A store shows nothing before its reference is published, which then is refused; and an answer
        that is given once more may come at any time.
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
    """Find messages that were stored long after the moment until which their requests were to be done.

    That a request's outcome is unknown does not excuse it: whoever asked may have given up, but not for
    ever.
    """

    names = ("stored_late",)

    @override
    def over(self) -> None:
        """Compare the moments of ids with what requests said."""
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
