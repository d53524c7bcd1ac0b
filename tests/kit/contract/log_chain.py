"""The contract of the log protocol: the hash chain (rule 16). See log.py."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import pytest

from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey
from broker.storage import entry as entries
from broker.storage import hashchain, sweep, walk
from broker.storage import head as heads
from broker.storage.chainaudit import ChainAudit, audited
from broker.storage.chainproof import ChainReader, NoChain
from broker.storage.entry import Shared
from broker.storage.head import Head, PageState
from broker.storage.hold import LogHold
from broker.storage.keys import page_key, page_of, space_of
from broker.storage.payloads import PayloadLogs
from broker.storage.reference import encode_count
from broker.storage.table import HEAD, Space
from tests.kit.contract.log_bench import KEY, Bench, LogSuite


async def audit(bench: Bench, since: LogKey | None = None) -> ChainAudit:
    """Verify the topic's log through the other node."""
    reader = ChainReader(bench.other, lambda: 1 << 50)
    return await audited(lambda page: reader.stretch(bench.log, page), since)


async def told(bench: Bench) -> list[str]:
    """Return what the verification tells."""
    return [each.what for each in (await audit(bench)).problems]


class ChainContract(LogSuite):
    """A log with a hash chain."""

    @pytest.fixture
    async def chained(self, hold: LogHold) -> LogHold:
        await hold.begin_chain()
        return hold

    async def test_a_log_without_a_chain_has_no_proof(self, bench: Bench, hold: LogHold) -> None:
        await bench.publish(hold, 3)
        with pytest.raises(NoChain):
            await ChainReader(bench.other, lambda: 0).proof(bench.log, None)
        assert (await audit(bench)).first is None

    async def test_a_chain_leads_over_pages_claims_and_attributes(
        self, bench: Bench, chained: LogHold
    ) -> None:
        for _ in range(3):
            await bench.publish(chained, 2, Shared(pointer=7))
            await bench.publish(chained, 2, key=KEY)
        await chained.begin_chain()
        second = await bench.claim(bench.other, "other")
        assert second.is_chained
        ids = await bench.publish(second, 3, attributes=[b"\0\0", b"", b"\0\0"])
        for _ in range(3):
            await bench.publish(second)
        found = await audit(bench)
        assert found.problems == []
        assert found.messages == 18
        assert found.end == (second.pointer, second.head.chain)
        assert found.pages > 2
        later = await audit(bench, ids[0])
        assert later.problems == []
        assert later.end == found.end
        assert later.messages < 18

    async def test_a_chain_may_begin_behind_messages(self, bench: Bench, hold: LogHold) -> None:
        await bench.publish(hold, 2, Shared(pointer=7))
        ids = await bench.publish(hold)
        await hold.begin_chain()
        await hold.rollback(7, LOG_KEY_MIN, LOG_KEY_MAX)
        await bench.publish(hold, 2)
        found = await audit(bench)
        assert found.problems == []
        assert found.messages == 2
        assert found.uncovered == 2
        assert found.first is not None
        assert found.first > ids[0]

    async def test_rollbacks_are_in_the_chain(self, bench: Bench, chained: LogHold) -> None:
        mine: list[LogKey] = []
        for _ in range(4):
            mine += await bench.publish(chained, 2, Shared(pointer=7))
            await bench.publish(chained, 1, Shared(pointer=9))
        before = chained.head.chain
        await chained.rollback(7, mine[1], mine[-2])
        await chained.rollback(9, LOG_KEY_MIN, LOG_KEY_MAX)
        assert chained.head.chain != before
        assert await told(bench) == []
        for page, _ in await chained.chain(chained.root.floor, chained.pointer):
            await chained.invert(page, lambda pointer: pointer == 7)
        await chained.end_inverting()
        await bench.publish(chained, 2, Shared(pointer=7))
        assert await told(bench) == []
        assert len(await bench.hidden()) == 12

    async def test_a_stub_keeps_the_chain(self, bench: Bench, chained: LogHold) -> None:
        await bench.publish(chained, 2, Shared(lifetime_ms=5))
        await bench.publish(chained, 2, Shared(lifetime_ms=5), attributes=[b"\0\0", b""])
        for _ in range(4):
            await bench.publish(chained, 1)
        known = sweep.LifetimeEnds(1)
        await sweep.look_for_ends(chained, known)
        assert await sweep.end_lives(chained, known, bench.ms + 100) == 1
        assert len(await bench.read()) == 4
        assert await told(bench) == []

    async def test_the_chain_is_verified_from_the_floor_on(
        self, bench: Bench, chained: LogHold
    ) -> None:
        for _ in range(9):
            await bench.publish(chained, 1)
        end = chained.head.chain
        await sweep.raise_floor(chained, chained.pointer)
        await bench.clear(chained)
        found = await audit(bench)
        assert found.problems == []
        assert found.first == chained.root.floor
        assert chained.head.chain != end
        proof = await ChainReader(bench.other, lambda: 0).proof(bench.log, None)
        assert proof.floor == chained.root.floor
        assert proof.begin
        assert proof.head == found.end

    async def test_a_proof_shows_that_nothing_before_it_changed(
        self, bench: Bench, chained: LogHold
    ) -> None:
        reader = ChainReader(bench.other, lambda: 0)
        ids = await bench.publish(chained, 3, Shared(pointer=7))
        kept = [await reader.proof(bench.log, None), await reader.proof(bench.log, ids[1])]
        for _ in range(9):
            await bench.publish(chained, 1)
            await chained.rollback(7, *ids[:2])
            kept.append(await reader.proof(bench.log, None))
        assert kept[1].at == (ids[-1], kept[0].head.hash)
        found = await audit(bench)
        for proof in kept:
            now = await reader.proof(bench.log, proof.at.pointer)
            assert found.differs(proof.at, now.hashes) == ""
            assert found.differs(proof.head, now.hashes) == ""

    async def test_payload_logs_are_in_the_chain(self, bench: Bench, chained: LogHold) -> None:
        payloads = PayloadLogs(bench.one, "one")
        stored = await payloads.open(chained, 5)
        assert stored.is_chained
        for _ in range(6):
            ids = bench.ids(1)
            added = entries.entries_of(stored.epoch, ids, [b"stored"], Shared(is_stored=True))
            await stored.append(added, messages=1, payload_bytes=6)
        sealed = await payloads.seal(chained, 5)
        assert sealed.tail is not None
        key = bench.ids(1)
        count = encode_count(6, sealed.tail.chain)
        added = entries.entries_of(chained.epoch, key, [count], Shared(5, None, 5))
        await chained.append(added, messages=6, payload_bytes=0)
        found = await audit(bench)
        assert found.problems == []
        assert (found.messages, found.uncovered) == (6, 0)
        log = bench.log._replace(number=5)
        await self._rewrite(bench, page_key(log, LOG_KEY_MIN), 1, space=space_of(log))
        assert "stored messages" in (await told(bench))[0]

    # Attacks: a program that can write the store, and makes every checksum right.

    async def _pages(self, bench: Bench) -> list[tuple[LogKey, Head]]:
        rows = walk.pages(bench.one.resolver, bench.log)
        return [(page_of(row), heads.decode(cell.value)) async for row, cell in rows]

    async def _cells(self, bench: Bench, page: LogKey) -> list[tuple[bytes, bytes]]:
        row = page_key(bench.log, page)
        return [each async for each in walk.cells(bench.one.resolver, space_of(bench.log), row)]

    async def _change(
        self,
        bench: Bench,
        row: bytes,
        puts: dict[bytes, bytes],
        deletes: Sequence[bytes] = (),
        space: Space | None = None,
    ) -> None:
        space = space or space_of(bench.log)
        found = (await bench.table.get(space, row, (HEAD,)))[HEAD].value
        head = heads.decode(puts.get(HEAD, found))._replace(token=secrets.token_bytes(12))
        kept = [column for column in deletes if column not in puts]
        assert await bench.one.resolver.swap(
            space,
            row,
            found,
            heads.encode(head),
            {c: v for c, v in puts.items() if c != HEAD},
            deletes=kept,
        )

    async def _rewrite(
        self, bench: Bench, row: bytes, nth: int, space: Space | None = None
    ) -> None:
        """Change a payload of one entry, with a right checksum."""
        cells = [
            each
            async for each in walk.cells(bench.one.resolver, space or space_of(bench.log), row)
            if each[0].startswith(b"e")
        ]
        column, value = cells[nth]
        entry = entries.decode(value)
        entry.items = bytes(entry.items[:-1]) + b"!"
        await self._change(bench, row, {column: entries.encode(entry)}, space=space)

    async def _filled(self, bench: Bench, chained: LogHold) -> list[LogKey]:
        ids = []
        for _ in range(14):
            ids += await bench.publish(chained, 1, Shared(pointer=7))
        await chained.rollback(7, ids[2], ids[3])
        assert await told(bench) == []
        return ids

    async def test_a_changed_entry_is_named(self, bench: Bench, chained: LogHold) -> None:
        ids = await self._filled(bench, chained)
        page = (await self._pages(bench))[1][0]
        await self._rewrite(bench, page_key(bench.log, page), 1)
        (problem,) = (await audit(bench)).problems
        assert problem.page == page
        assert "changed, added or removed" in problem.what
        assert problem.first <= ids[5] <= problem.last

    async def test_a_flipped_byte_is_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        page = (await self._pages(bench))[1][0]
        column, value = (await self._cells(bench, page))[0]
        bad = value[:-6] + bytes([value[-6] ^ 1]) + value[-5:]
        await self._change(bench, page_key(bench.log, page), {column: bad})
        (problem,) = (await audit(bench)).problems
        assert "checksum" in problem.what
        assert (problem.page, problem.last) == (page, column[1:11])

    async def test_a_dropped_entry_is_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        page, head = (await self._pages(bench))[1]
        column, _ = (await self._cells(bench, page))[1]
        smaller = head._replace(cells=head.cells - 1)
        row = page_key(bench.log, page)
        await self._change(bench, row, {HEAD: heads.encode(smaller)}, deletes=[column])
        assert ["changed, added or removed" in each for each in await told(bench)] == [True]

    async def test_swapped_pages_are_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        (one, a), (two, b) = (await self._pages(bench))[1:3]
        first, second = await self._cells(bench, one), await self._cells(bench, two)
        for page, head, gone, put in ((one, b, first, second), (two, a, second, first)):
            await self._change(
                bench,
                page_key(bench.log, page),
                {**dict(put), HEAD: heads.encode(head)},
                deletes=[column for column, _ in gone],
            )
        problems = (await audit(bench)).problems
        assert problems[0].page == one

    async def test_a_dropped_page_is_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        (page, head) = (await self._pages(bench))[1]
        gone = head._replace(state=PageState.GONE)
        await self._change(bench, page_key(bench.log, page), {HEAD: heads.encode(gone)})
        assert "removed" in (await told(bench))[0]

    async def test_a_taken_rollback_is_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        page = (await self._pages(bench))[0][0]
        rolled = [
            column
            for column, _ in await self._cells(bench, page)
            if column[-1:] == b"x" and len(column) == 21
        ]
        row = page_key(bench.log, page)
        await self._change(bench, row, {}, deletes=rolled[:1])
        assert "taken away" in (await told(bench))[0]
        assert len(await bench.hidden()) == 1

    async def test_an_added_rollback_is_named(self, bench: Bench, chained: LogHold) -> None:
        ids = await self._filled(bench, chained)
        page = (await self._pages(bench))[2][0]
        column, _ = (await self._cells(bench, page))[0]
        value = entries.encode_rolled([(ids[0], ids[-1])])
        await self._change(bench, page_key(bench.log, page), {column + b"x": value})
        assert "no record" in (await told(bench))[0]

    async def test_a_removed_beginning_is_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        page = (await self._pages(bench))[2][0]
        await chained._raise_root(floor=page)
        assert "no record" in (await told(bench))[0]

    async def test_messages_removed_early_are_named(self, bench: Bench, chained: LogHold) -> None:
        await self._filled(bench, chained)
        await bench.publish(chained, 1, Shared(lifetime_ms=1 << 45))
        page = (await self._pages(bench))[-1][0]
        column, value = (await self._cells(bench, page))[-1]
        stub = entries.stub_of(entries.decode(value), hashchain.content_hash(value))
        await self._change(bench, page_key(bench.log, page), {column: entries.encode(stub)})
        reader = ChainReader(bench.other, lambda: bench.ms)
        found = await audited(lambda page: reader.stretch(bench.log, page))
        assert [each.what for each in found.problems] == ["messages were removed before their time"]

    async def test_a_rewritten_history_is_named_by_a_proof(
        self, bench: Bench, chained: LogHold
    ) -> None:
        reader = ChainReader(bench.other, lambda: 0)
        ids = await self._filled(bench, chained)
        early = await reader.proof(bench.log, ids[3])
        kept = await reader.proof(bench.log, None)
        await self._write_again(bench, 1)
        found = await audit(bench)
        assert found.problems == []
        now = await reader.proof(bench.log, kept.at.pointer)
        assert "written again" in found.differs(kept.at, now.hashes)
        now = await reader.proof(bench.log, early.at.pointer)
        assert found.differs(early.at, now.hashes) == ""

    async def _write_again(self, bench: Bench, nth: int) -> None:
        """Change a message, and make every hash and checksum behind it right."""
        pages = await self._pages(bench)
        await self._rewrite(bench, page_key(bench.log, pages[nth][0]), 1)
        chain = b""
        for page, head in pages:
            state = chain or head.before
            chain = state
            cells = await self._cells(bench, page)
            records = [each for each in cells if each[0].startswith(b"c")]
            found = [each for each in cells if each[0].startswith(b"e") and len(each[0]) < 21]
            for column, value in found:
                while records and records[0][0][1:11] < column[1:11]:
                    chain = hashchain.recorded(
                        hashchain.genesis(bench.log)
                        if page == LOG_KEY_MIN and state == chain
                        else chain,
                        hashchain.RecordCell(*records.pop(0)),
                    )
                link = hashchain.link_of(entries.decode(value), value)
                chain = hashchain.extended(chain, [link])
            for each in records:
                chain = hashchain.recorded(chain, hashchain.RecordCell(*each))
            new = head._replace(before=state, chain=chain)
            await self._change(bench, page_key(bench.log, page), {HEAD: heads.encode(new)})
