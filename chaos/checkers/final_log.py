"""Checkers of the log as it ended: every acknowledged message is there, in order, whole, on every node.

At the end of the history they look at each row once, from the first to the last::

    row     publish, as its publisher saw it       reordered         a row whose publish ended before
     1      p ├──────┤                                               that of an earlier row began
     2      q   ├──┤                               torn              rows of a request apart, or missing
     3                p ├────┤                     publisher_order   p's later message stands earlier
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import UNSURE, FinalRow, TopicFacts, TopicLife, Tried
from chaos.checkers.history_rows import ABOVE_ALL, STORED, Read, plain
from chaos.checkers.tables import LAST, ValueTable
from chaos.checkers.violations import Findings, Promises, spot
from chaos.history import Operation


class Finals(Checker):
    """Collect the logs as they ended, and find nodes that show them differently."""

    names = ("divergence", "floor_lowered")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without a final read."""
        super().__init__(topic, found, promises)
        self._of_nodes: dict[tuple[int, str, str], ValueTable[FinalRow]] = {}
        self._floors: dict[int, str] = {}
        self._ended_ns = 0

    @override
    def read(self, read: Read, life: int) -> None:
        """Keep the rows of a final read."""
        if not read.is_final or life == UNSURE:
            return
        log, name = self.topic.log(life), read.call.process
        snapshot = json.dumps(read.call.asked.get("snapshot"), sort_keys=True)
        table = self._of_nodes.get((life, snapshot, name))
        if table is None:
            table = self._of_nodes[life, snapshot, name] = ValueTable[FinalRow](self.topic.tables)
        for row in read.rows:
            table.put(row.id, FinalRow(row.payload, row.pointer))
        assert read.call.ended_ns is not None
        self._ended_ns = read.call.ended_ns
        if name == "final" and not read.has_snapshot:
            log.final, log.final_ns = table, read.call.ended_ns
            log.final_kinds.update(read.kinds)
            log.final_floor = max(log.final_floor, plain(read.call.told.get("floor") or ""))

    @override
    def ended(self, call: Operation) -> None:
        """Keep the highest acknowledged floor."""
        if call.op == "floor" and call.is_ok:
            life = call.asked["generation"]
            self._floors[life] = max(self._floors.get(life, ""), plain(call.told["floor"]))

    @override
    def over(self) -> None:
        """Compare the nodes' final reads, and the floors."""
        for (life, snapshot, name), table in self._of_nodes.items():
            final = self._of_nodes.get((life, snapshot, "final"))
            if name != "final" and final is not None:
                self._compare(name, life, final, table)
        for life, floor in self._floors.items():
            log = self.topic.log(life)
            if log.final is not None and floor > log.final_floor:
                self.found.add("floor_lowered", spot(floor, final=log.final_floor))

    def _compare(
        self, name: str, life: int, final: ValueTable[FinalRow], other: ValueTable[FinalRow]
    ) -> None:
        until_ns = self._ended_ns
        for one, two in ((final, other), (other, final)):
            for message_id, row in one.between("", ABOVE_ALL):
                there = two.get(message_id)
                if there is None and self._may_be_gone(row, until_ns):
                    continue  # It expired between the two reads. Coverage judges early expiry.
                if there is None or (one is final and there != row):
                    missing_from = name if one is final else "final"
                    detail = spot(
                        f"{self.topic.name} life {life}",
                        row=message_id,
                        payload=row.payload,
                        pointer=row.pointer,
                        differs_in=missing_from,
                        there=there,
                    )
                    self.found.add("divergence", detail)

    def _may_be_gone(self, row: FinalRow, until_ns: int) -> bool:
        tried = self.topic.of_payload(row.payload)
        return self.topic.may_have_expired(tried, until_ns, self.promises.early_ms)


@dataclass(slots=True)
class _Request:
    """The progress through the rows of one request."""

    place: int = -1
    parts: int = 0
    size: int = 0
    first: str = ""
    may_have_expired: bool = False


@dataclass(slots=True)
class _Scan:
    """The progress through the rows of one log."""

    final_ns: int
    latest: int = -1
    latest_payload: str = ""
    request: _Request = field(default_factory=_Request)
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    may_begin_within: bool = False


class Order(Checker):
    """Find rows out of order, and torn requests."""

    names = ("reordered", "publisher_order", "torn")

    @override
    def over(self) -> None:
        """Scan every log that was read to its end."""
        for log in self.topic.logs.values():
            if log.final is not None:
                self._scan(log, log.final)

    def _scan(self, log: TopicLife, final: ValueTable[FinalRow]) -> None:
        has_floor = max(log.final_floor, log.floor).strip("0") != ""
        scan = _Scan(log.final_ns, may_begin_within=has_floor)
        for message_id, row in final.between("", ABOVE_ALL):
            tried = self.topic.of_payload(row.payload)
            if tried is None or tried.is_stored:
                self._end_request(scan)
                continue
            if tried.id in ("", message_id):
                self._place(scan, message_id, str(row.payload), tried)
                self._number(scan, message_id, str(row.payload), tried)
                self._part(scan, message_id, tried)
        self._end_request(scan)

    def _place(self, scan: _Scan, message_id: str, payload: str, tried: Tried) -> None:
        if 0 <= tried.acked < scan.latest:
            detail = spot(payload, id=message_id, before=scan.latest_payload)
            self.found.add("reordered", detail, tried.acked)
        if tried.place > scan.latest:
            scan.latest, scan.latest_payload = tried.place, payload

    def _number(self, scan: _Scan, message_id: str, payload: str, tried: Tried) -> None:
        if tried.acked < 0 or tried.tries > 1:
            return  # A repeated request may stand at its first place or at a later one.
        number = tried.number, tried.part
        last = scan.numbers.get(tried.publisher, (-1, -1))
        if number < last:
            detail = spot(
                payload, id=message_id, publisher=tried.publisher, number=number, after=last
            )
            self.found.add("publisher_order", detail, tried.acked)
        scan.numbers[tried.publisher] = max(number, last)

    def _part(self, scan: _Scan, message_id: str, tried: Tried) -> None:
        request = scan.request
        if request.place != tried.place:
            self._end_request(scan)
            # The parts of a request expire together, but a final read has many pages. So the page that has the first
            # parts, or the last ones, may have been read while they were alive, and its neighbour after their end.
            may_have_expired = self.topic.may_have_expired(
                tried, scan.final_ns, self.promises.early_ms
            )
            starts_at = tried.part if scan.may_begin_within or may_have_expired else 0
            request = scan.request = _Request(
                tried.place, starts_at, tried.size, message_id, may_have_expired
            )
        if tried.part != request.parts:
            detail = spot(message_id, part=tried.part, expected=request.parts, of=tried.size)
            self.found.add("torn", detail, tried.place)
        request.parts = tried.part + 1
        scan.may_begin_within = False

    def _end_request(self, scan: _Scan) -> None:
        request = scan.request
        if request.parts < request.size and not request.may_have_expired:
            detail = spot(request.first, parts=request.parts, of=request.size)
            self.found.add("torn", detail, request.place)
        scan.request = _Request()


class Lost(Checker):
    """Find acknowledged payloads that are not in the log at the end.

    The name depends on the message's place among its publisher's messages. A slow reader might explain a
    lost tail, and a floor a lost prefix. Neither explains a lost middle.
    """

    names = ("lost_prefix", "lost_middle", "lost_tail")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without references."""
        super().__init__(topic, found, promises)
        self._referred: set[int] = set()

    @override
    def ended(self, call: Operation) -> None:
        """Keep the numbers of stored payloads that were published."""
        if call.op == "reference" and call.is_ok:
            self._referred.add(call.asked["number"])

    @override
    def over(self) -> None:
        """Compare the acknowledged messages with the log."""
        kept: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
        for _, tried in self.topic.tried.between("", LAST):
            if tried.acked >= 0 and self._is_there(tried):
                number = tried.number, tried.part
                first, last = kept.get(tried.publisher, (number, number))
                kept[tried.publisher] = min(first, number), max(last, number)
        for payload, tried in self.topic.tried.between("", LAST):
            if self._is_owed(tried) and not self._is_there(tried):
                name = f"lost_{_part_of((tried.number, tried.part), kept.get(tried.publisher))}"
                detail = spot(payload, publisher=tried.publisher, told=tried.told)
                self.found.add(name, detail, tried.acked)

    def _is_there(self, tried: Tried) -> bool:
        log = self.topic.logs.get(tried.life)
        return bool(tried.id and log and log.final and log.final.get(tried.id) is not None)

    def _is_owed(self, tried: Tried) -> bool:
        log = self.topic.logs.get(tried.life)
        if tried.acked < 0 or log is None or log.final is None:
            return False
        if tried.is_stored and (
            STORED not in log.final_kinds or tried.pointer not in self._referred
        ):
            return False
        if max(tried.told, tried.above) < log.final_floor and not tried.is_stored:
            # The floor may have removed it. An unknown id counts as below any floor.
            return False
        return not self.topic.may_have_expired(tried, log.final_ns, self.promises.early_ms)


def _part_of(number: tuple[int, int], kept: tuple[tuple[int, int], tuple[int, int]] | None) -> str:
    if kept is None or number > kept[1]:
        return "tail"
    return "prefix" if number < kept[0] else "middle"
