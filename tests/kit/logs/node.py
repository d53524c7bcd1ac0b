"""A node of a random run: it leads a topic by the shipped protocol, and works as a topic's leader does.

Each method is one request of a client: it claims the log if this node does not lead, does its work, and records the
answer with the ghost. A node believes that it leads until storage refuses a change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, TypeVar

from broker.errors import BrokerError, Fenced, OutcomeUnknown, Unavailable, UnavailableError
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, log_key_before
from broker.storage import sweep
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Deleted, Logs, StaleGeneration
from broker.storage.memory.adversary import AdversaryTable
from broker.storage.ownpage import PageBounds
from broker.storage.payloads import LogClosed, PayloadLogs
from broker.storage.records import Records
from broker.storage.resolve import Resolver
from broker.storage.root import RootState
from broker.testing.virtual_time import VirtualClock
from broker.topics.log_keys import LeadExceeded, LogKeys
from tests.kit.logs.ghost import Acked, Answer, Ghost, Rolled, Shown, Start
from tests.kit.logs.leads import Lead, NodeTable, Part
from tests.kit.logs.watched import TOPIC

RECORD = b"ns:t:record"
MARK_KIND = 1
CALL_S = 0.4

Result = TypeVar("Result")


class Refused(Exception):
    """The request had no effect, and storage did not refuse it: there is no topic, or the node does not lead."""


class Request(NamedTuple):
    """An append: its labels, and their options."""

    labels: Sequence[str]
    pointer: int | None = None
    key: str | None = None
    lifetime_ms: int | None = None


class Node:
    """One node."""

    def __init__(
        self,
        number: int,
        table: AdversaryTable,
        ghost: Ghost,
        chance: random.Random,
        clock: VirtualClock,
        bounds: PageBounds,
        *,
        instance: int,
    ) -> None:
        """Begin without leading. Ids are unique if ``instance`` is."""
        self._instance = instance
        self.name = f"n{number}"
        self.table = NodeTable(table)
        self.clock = clock
        self.lead: Lead | None = None
        self.is_chained = False
        """True if the log has a hash chain."""
        self._behind = table
        self._ghost = ghost
        self._chance = chance
        self._claiming = asyncio.Lock()
        nonce = lambda: chance.randbytes(8)  # noqa: E731 - A source of nonces.
        self.logs = Logs(self.table, clock, bounds=bounds, call_s=CALL_S, nonce=nonce)
        self.payload_logs = PayloadLogs(self.logs, self.name)
        self.records = Records(Resolver(self.table, clock, call_s=CALL_S, nonce=nonce), nonce)

    def start(self) -> Start:
        """Return the counts of acknowledged requests."""
        ghost, root = self._ghost, self._ghost.table.root()
        generation = 0 if root is None else root.generation
        return Start(len(ghost.acked), len(ghost.rolled), generation, self._old_rows())

    def _old_rows(self) -> int:
        return self._behind.happened["old_rows"]

    # Leading.

    async def leader(self) -> Lead:
        """Return this node's lead; claim the log if it does not lead."""
        async with self._claiming:
            if self.lead is not None and not self.lead.hold.done:
                return self.lead
            self.lead = None
            generation = await self._generation()
            if generation is None:
                raise Refused
            log = LogId(TOPIC, generation)
            try:
                hold = await self.logs.claim(log, self.name)
            except StaleGeneration:
                raise Refused from None
            except Deleted:
                await self._record_deleted(generation)
                raise Refused from None
            if self.is_chained:
                await hold.begin_chain()
            lead = Lead(hold, self.clock, self._instance)
            for page, head in await hold.chain(hold.root.floor, hold.pointer):
                reader = self.logs.reader(log, log_key_before(hold.root.floor), hold.pointer)
                entries = await reader.page_entries(page, head)
                lead.take(entries)
            self.lead = lead
            return lead

    async def _generation(self) -> int | None:
        record = await self.records.get(RECORD)
        if record is None or not record.value.startswith(b"+"):
            return None
        return int(record.value)

    async def _guarded(self, lead: Lead, change: Awaitable[Result]) -> Result:
        try:
            return await change
        except BrokerError:
            if lead.hold.done and self.lead is lead:
                self.lead = None
            raise

    # Requests.

    async def append(self, request: Request) -> None:
        """Publish messages, with or without a transaction or a key."""
        try:
            lead = await self.leader()
            async with lead.turn:
                await self._guarded(lead, self._append(lead, request))
        except (Fenced, Unavailable, Refused):
            if request.key is None:
                self._ghost.never.update(request.labels)
            raise

    async def _append(self, lead: Lead, request: Request) -> None:
        hold, ghost, key = lead.hold, self._ghost, request.key
        if key is not None:
            known = await hold.marks.find(MARK_KIND, _key(key))
            if known:
                ghost.replays.append((hold.log.generation, key, known[0].first))
                return
        shared = Shared(request.pointer, request.lifetime_ms)
        added = self._entries(lead.ids, hold, request.labels, shared)
        if key is not None:
            mark = Mark(MARK_KIND, _key(key), added[0].first, added[-1].last, bytes(32))
            added[0].marks = (mark,)
        epoch = hold.epoch
        await hold.append(added, messages=len(request.labels), payload_bytes=0)
        lead.take(added)
        ids = [key for entry in added for key in entry.ids()]
        for label, at in zip(request.labels, ids, strict=True):
            ghost.acked.append(Acked(label, at, hold.log.generation, epoch))

    def _entries(
        self, ids: LogKeys, hold: LogHold, labels: Sequence[str], shared: Shared = PLAIN
    ) -> list[Entry]:
        """Return messages as entries: one, or sometimes two."""
        try:
            rows = ids.take(len(labels), self.clock.now_ms(), self.clock.monotonic() * 1000)
        except LeadExceeded:
            raise Unavailable("ids are ahead of the clock") from None
        payloads = [label.encode() for label in labels]
        if len(labels) < 2 or self._chance.random() < 0.5:
            return entries_of(hold.epoch, rows, payloads, shared)
        return [
            *entries_of(hold.epoch, rows[:1], payloads[:1], shared),
            *entries_of(hold.epoch, rows[1:], payloads[1:], shared),
        ]

    async def poll(self) -> None:
        """Answer a poll from memory, after a proof that this node leads."""
        start = self.start()
        lead = await self.leader()
        if not await lead.hold.proof():
            raise Refused
        floor = lead.hold.root.floor
        shown = [Shown(m.id, m.label, m.is_hidden) for m in lead.cache if m.id >= floor]
        self._answered(
            "polled", start, lead.hold.log.generation, LOG_KEY_MIN, shown, is_strict=True
        )

    def _answered(
        self,
        op: str,
        start: Start,
        generation: int,
        low: LogKey,
        shown: list[Shown],
        *,
        is_strict: bool,
    ) -> None:
        root = self._ghost.table.root()
        if root is None or root.generation != generation or root.state is not RootState.LIVE:
            return
        answer = Answer(op, start, generation, low, root.floor, shown, is_strict)
        self._ghost.answers.append(answer)

    async def read(self, *, backwards: bool) -> None:
        """Read from storage, without leading."""
        start = self.start()
        generation = await self._generation()
        if generation is None:
            raise Refused
        low = LOG_KEY_MIN
        if self._ghost.acked and self._chance.random() < 0.4:
            low = self._chance.choice(self._ghost.acked).id
        reader = self.logs.reader(LogId(TOPIC, generation), log_key_before(low) if low else low)
        shown: list[Shown] = []
        is_whole = True
        while not reader.ended:
            bytes_max = self._chance.choice((1, 200, 1 << 20))
            if backwards:
                found = await reader.before(self._chance.choice((1, 2, 100)), bytes_max)
            else:
                found = await reader.next(bytes_max)
            shown += _shown(found, low, backwards=backwards)
            if self._chance.random() < 0.02:
                is_whole = False
                break
        if backwards:
            shown.reverse()
        is_strict = is_whole and self._old_rows() == start.old_rows
        op = "backwards" if backwards else "read"
        self._answered(op, start, generation, low, shown, is_strict=is_strict)

    async def rollback(self, pointer: int, first: LogKey, last: LogKey) -> None:
        """Roll a transaction's messages back."""
        begun = [(a.generation, a.id) for a in self._ghost.acked if first <= a.id <= last]
        lead = await self.leader()
        await self._guarded(lead, lead.hold.rollback(pointer, first, last))
        lead.cache = [
            m._replace(is_hidden=True) if m.pointer == pointer and first <= m.id <= last else m
            for m in lead.cache
        ]
        generation = lead.hold.log.generation
        ids = frozenset(key for of, key in begun if of == generation)
        self._ghost.rolled.append(Rolled(generation, pointer, ids))

    async def hand_off(self) -> None:
        """Hand the log off."""
        lead = self.lead
        if lead is not None:
            async with lead.turn:
                await lead.hold.hand_off()

    # Retention.

    async def raise_floor(self) -> None:
        """Let the messages below a random one expire, and remove them."""
        lead = await self.leader()
        hold = lead.hold
        if not lead.cache:
            return
        bound = self._chance.choice(lead.cache).id
        if self._chance.random() < 0.3:
            bound = (int.from_bytes(hold.pointer, "big") + 1).to_bytes(10, "big")
        generation = hold.log.generation
        bounds = self._ghost.bounds
        bounds[generation] = max(bounds.get(generation, LOG_KEY_MIN), bound)
        await self._guarded(lead, sweep.raise_floor(hold, bound))
        more, slices = True, 0
        while more and slices < 50:
            slices += 1
            slice_max = self._chance.choice((1, 2, 10))
            clearing = sweep.clear_below_floor(self.logs.resolver, hold, slice_max)
            _, more = await self._guarded(lead, clearing)

    async def end_lives(self) -> None:
        """End the lifetimes that are over, by a clock that is a bit wrong."""
        lead = await self.leader()
        before_ms = self.clock.now_ms() + self._chance.choice((-200, 0, 100))
        self._ghost.ended_ms = max(self._ghost.ended_ms, before_ms)
        await self._guarded(lead, sweep.look_for_ends(lead.hold, lead.ends))
        await self._guarded(lead, sweep.end_lives(lead.hold, lead.ends, before_ms))

    # Generations.

    async def delete(self) -> None:
        """Delete the topic."""
        generation = await self._generation()
        if generation is None:
            raise Refused
        try:
            await self.logs.delete(LogId(TOPIC, generation), self.name)
        except StaleGeneration:
            raise Refused from None
        await self._record_deleted(generation)

    async def _record_deleted(self, generation: int) -> None:
        record = await self.records.get(RECORD)
        if record is not None and record.value == b"+%d" % generation:
            await self.records.put_if(RECORD, record.version, b"-%d" % generation)

    async def create(self) -> None:
        """Create the topic, if it does not exist."""
        record = await self.records.get(RECORD)
        generation = 1 if record is None else abs(int(record.value)) + 1
        if record is None or record.value.startswith(b"-"):
            version = None if record is None else record.version
            await self.records.put_if(RECORD, version, b"+%d" % generation)

    async def sweep_generations(self) -> None:
        """Clear the pages of dead generations."""
        root = await self.logs.root(LogId(TOPIC, 1))
        for generation in range(1, 0 if root is None else root.generation):
            after: LogKey | None = LOG_KEY_MIN
            while after is not None:
                _, after = await sweep.clear_generation(
                    self.logs.resolver, TOPIC, generation, after, self._chance.choice((1, 100))
                )

    # Payload logs.

    async def store(self, number: int, label: str) -> None:
        """Store a payload of a transaction."""
        lead = await self.leader()
        part = lead.parts.get(number)
        if part is None or part.hold.done:
            try:
                hold = await self._guarded(lead, self.payload_logs.open(lead.hold, number))
            except LogClosed:
                raise Refused from None
            part = lead.parts.setdefault(number, Part(hold, self.clock, self._instance))
            if part.hold.done:
                part = lead.parts[number] = Part(hold, self.clock, self._instance)
        async with part.turn:
            added = self._entries(part.ids, part.hold, [label], Shared(is_stored=True))
            await part.hold.append(added, messages=1, payload_bytes=len(label))
        await self.proven(lead)
        self._ghost.stored.append((label, number, lead.hold.log.generation))

    async def proven(self, lead: Lead) -> None:
        """Check that the node still leads. Raises OutcomeUnknown."""
        if not await lead.hold.proof():
            raise OutcomeUnknown("The topic changed hands.")

    async def publish(self, number: int) -> None:
        """Publish the reference to a payload log."""
        lead = await self.leader()
        async with lead.publishing.setdefault(number, asyncio.Lock()):
            await self._publish(lead, number)

    async def _publish(self, lead: Lead, number: int) -> None:
        part = lead.parts.pop(number, None)
        if part is not None:
            await part.hold.settled()
            part.hold.end()
        sealed = await self._guarded(lead, self.payload_logs.seal(lead.hold, number))
        if not sealed.was_open:
            if sealed.root.state is not RootState.SEALED:
                return
            found = await self.find_reference(lead, number, sealed.root.at)
            if found is not None:
                await self.payload_logs.mark_published(lead.hold, number, found)
                return
        async with lead.turn:
            label = f"reference {number} of {lead.hold.log.generation}"
            added = self._entries(lead.ids, lead.hold, [label], Shared(number=number))
            append = lead.hold.append(added, messages=1, payload_bytes=0)
            epoch = lead.hold.epoch
            await self._guarded(lead, append)
            lead.take(added)
            key = added[0].first
        self._ghost.acked.append(Acked(label, key, lead.hold.log.generation, epoch))
        await self.payload_logs.mark_published(lead.hold, number, key)

    async def find_reference(self, lead: Lead, number: int, at: LogKey) -> LogKey | None:
        """Search for a reference behind ``at``. Raises OutcomeUnknown."""
        hold, after = lead.hold, (int.from_bytes(at, "big") + 1).to_bytes(10, "big")
        through = hold.pointer
        if hold.root.floor > after:
            raise OutcomeUnknown("It may have expired.")
        found = None
        for page, head in await hold.chain(after, through):
            reader = self.logs.reader(hold.log, at, through)
            for entry in await reader.page_entries(page, head):
                if entry.is_reference and entry.number == number:
                    found = entry.first
        return found

    async def drop(self, number: int) -> None:
        """Drop a published payload log."""
        lead = await self.leader()
        log = LogId(TOPIC, lead.hold.log.generation, number)
        root = await self.payload_logs.root(log)
        if root is None or root.state is not RootState.PUBLISHED:
            raise Refused
        await self._guarded(lead, self.payload_logs.drop(lead.hold, number, self.clock.now_ms()))
        await self.payload_logs.empty(log)

    async def read_references(self, *, is_calm: bool = False) -> None:
        """Read the topic and the payloads of its references; with ``is_calm`` there are no faults and every read works."""
        generation = await self._generation()
        if generation is None:
            raise Refused
        stores = len(self._ghost.stored)
        reader = self.logs.reader(LogId(TOPIC, generation), LOG_KEY_MIN)
        numbers = []
        while not reader.ended:
            numbers += [e.number for e in await reader.next(1 << 20) if e.number is not None]
        for number in numbers:
            labels = await self.payloads(LogId(TOPIC, generation, number))
            if labels is not None:
                self._ghost.payloads.append((generation, number, labels, stores))
            elif is_calm:
                self._ghost.bad("a reference can't be read", number)

    async def payloads(self, log: LogId) -> list[str] | None:
        """Return the labels of a closed payload log; of a dropped one, all stored labels; None if it is not closed."""
        for _ in range(4):
            reader = self.logs.reader(log, LOG_KEY_MIN, LOG_KEY_MAX)
            labels: list[str] = []
            while not reader.ended:
                for entry in await reader.next(self._chance.choice((1, 1 << 20))):
                    labels += [entry.payload(place).decode() for place in range(entry.count)]
            root = await self.payload_logs.root(log)
            if root is not None and root.state is RootState.DROPPED:
                return [
                    label for label, *of in self._ghost.stored if of == [log.number, log.generation]
                ]
            if reader.is_closed:
                return labels
        return None


def _shown(found: Sequence[Entry], low: LogKey, *, backwards: bool) -> list[Shown]:
    out = []
    for entry in found:
        if entry.is_stub:
            continue
        some = [
            Shown(key, entry.payload(place).decode(), entry.is_rolled_back(key))
            for place, key in enumerate(entry.ids())
            if key >= low
        ]
        out += some[::-1] if backwards else some
    return out


def _key(key: str) -> bytes:
    return key.encode().ljust(16, b".")


ENDS_BADLY = (BrokerError, Refused, UnavailableError)
