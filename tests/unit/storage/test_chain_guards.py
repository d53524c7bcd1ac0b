"""The clauses of rule 16, each with its mutant: without the clause the verification finds a problem, or misses an attack."""

from collections.abc import Callable

import pytest

from broker.clock import SystemClock
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, TopicId
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import hold as holds
from broker.storage import page_packer, sweep
from broker.storage.chainaudit import ChainAudit, audited
from broker.storage.chainproof import ChainReader
from broker.storage.check import verify
from broker.storage.columns import is_rolled_column
from broker.storage.entry import Shared
from broker.storage.hold import LogHold
from broker.storage.keys import page_key
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import OwnPage
from broker.storage.payloads import PayloadLogs
from broker.storage.records import Records
from broker.storage.reference import encode_count
from broker.storage.resolve import Tokens
from broker.storage.table import HEAD, Space
from broker.topics.registry import TopicRegistry
from tests.kit.contract.log_bench import SMALL, Bench

Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def bench() -> Bench:
    table, clock = MemoryTable(), SystemClock()
    logs = [Logs(table, clock, bounds=SMALL) for _ in range(2)]
    return Bench(table, TopicId("ns", "t"), *logs)


async def audit(bench: Bench) -> ChainAudit:
    reader = ChainReader(bench.other, lambda: 1 << 50)
    return await audited(lambda page: reader.stretch(bench.log, page))


async def honest(bench: Bench) -> ChainAudit:
    """Let two leaders write all kinds of things, and verify the log."""
    hold = await bench.claim()
    await hold.begin_chain()
    for _ in range(3):
        await bench.publish(hold, 2, Shared(pointer=7))
        await bench.publish(hold, 1, Shared(lifetime_ms=5))
    await hold.rollback(7, LOG_KEY_MIN, LOG_KEY_MAX)
    known = sweep.LifetimeEnds(1)
    await sweep.look_for_ends(hold, known)
    await sweep.end_lives(hold, known, bench.ms + 100)
    payloads = PayloadLogs(bench.one, "one")
    stored = await payloads.open(hold, 5)
    ids = bench.ids(1)
    await stored.append(
        entries.entries_of(stored.epoch, ids, [b"x"], Shared(is_stored=True)),
        messages=1,
        payload_bytes=1,
    )
    sealed = await payloads.seal(hold, 5)
    assert sealed.tail is not None
    count = encode_count(1, sealed.tail.chain)
    added = entries.entries_of(hold.epoch, bench.ids(1), [count], Shared(5, None, 5))
    await hold.append(added, messages=1, payload_bytes=0)
    second = await bench.claim(bench.other, "other")
    for _ in range(6):
        await bench.publish(second)
    await second.settled()
    await sweep.raise_floor(second, added[0].last)
    return await audit(bench)


async def test_all_clauses_together_leave_no_problem(bench):
    found = await honest(bench)
    assert found.problems == []
    assert found.uncovered == 0


def _claim_drops_the_hashes(patch: pytest.MonkeyPatch) -> None:
    taken = heads.taken
    patch.setattr(heads, "taken", lambda *given: taken(*given)._replace(before=b"", chain=b""))


def _roll_keeps_before(patch: pytest.MonkeyPatch) -> None:
    following = heads.following
    patch.setattr(
        heads,
        "following",
        lambda before, *more: following(before, *more)._replace(before=before.before),
    )


def _append_adds_no_link(patch: pytest.MonkeyPatch) -> None:
    appended = OwnPage._appended
    patch.setattr(
        OwnPage,
        "_appended",
        lambda self, added, count, size, links: appended(self, added, count, size, links[1:]),
    )


def _stub_without_hash(patch: pytest.MonkeyPatch) -> None:
    async def digest(value: bytes) -> bytes:
        return b""

    patch.setattr(holds, "_digest", digest)


def _no_announcement(patch: pytest.MonkeyPatch) -> None:
    async def announce(self: LogHold, record: object) -> None:
        return None

    patch.setattr(LogHold, "_announce", announce)


def _begins_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnPage, "is_chained", property(lambda self: False))


@pytest.mark.parametrize(
    "mutate",
    [
        _claim_drops_the_hashes,
        _roll_keeps_before,
        _append_adds_no_link,
        _stub_without_hash,
        _no_announcement,
        _begins_again,
    ],
)
async def test_without_a_clause_the_verification_finds_a_problem(
    bench, monkeypatch, mutate: Mutate
):
    mutate(monkeypatch)
    found = await honest(bench)
    assert found.problems or found.first is None


async def test_a_page_with_a_chain_is_not_packed(bench, monkeypatch):
    hold = await bench.claim()
    await hold.begin_chain()
    for _ in range(6):
        await bench.publish(hold)
    tokens = Tokens(b"12345678")
    assert not await page_packer.pack(bench.one.resolver, tokens, bench.log, LOG_KEY_MIN)
    assert (await audit(bench)).problems == []
    # The mutant: packing does not see the chain, so the page no longer has the entries of its hash.
    decode = heads.decode
    monkeypatch.setattr(page_packer.heads, "decode", lambda value: _Blind(*decode(value)))
    assert await page_packer.pack(bench.one.resolver, tokens, bench.log, LOG_KEY_MIN)
    monkeypatch.undo()
    assert (await audit(bench)).problems


class _Blind(heads.Head):
    """A head that seems to have no chain, and is written with it."""

    @property
    def chain(self):
        return _Hash(self[-1])


class _Hash(bytes):
    def __bool__(self):
        return False


async def test_only_a_done_rollback_must_be_there(bench, monkeypatch):
    async def taken_away(*, is_done: bool) -> list[str]:
        if not is_done:

            async def last_change(self, number=None):
                async with self._exclusive_turn():
                    await self._change_own_head({}, edits=self.head.edits + 1)

            monkeypatch.setattr(LogHold, "_last_change", last_change)
        hold = await bench.claim()
        await hold.begin_chain()
        await bench.publish(hold, 2, Shared(pointer=7))
        await hold.rollback(7, LOG_KEY_MIN, LOG_KEY_MAX)
        row = page_key(bench.log, hold.page)
        columns = await bench.table.columns(Space.MESSAGES, row, b"e", b"f")
        rolled = [column for column in columns if is_rolled_column(column)]
        head = (await bench.table.get(Space.MESSAGES, row, (HEAD,)))[HEAD].value
        assert await bench.table.change(Space.MESSAGES, row, head, {HEAD: head}, rolled)
        return [each.what for each in (await audit(bench)).problems]

    assert len(await taken_away(is_done=True)) == 1
    bench.topic = TopicId("ns", "other")
    # The mutant: without the second record nobody can tell a rollback that was taken away from one that stopped.
    assert await taken_away(is_done=False) == []


async def test_a_payload_log_without_a_chain_is_told(bench, monkeypatch):
    begin = OwnPage.begin_chain

    async def topics_alone(self: OwnPage) -> None:
        if self.log.number is None:
            await begin(self)

    monkeypatch.setattr(OwnPage, "begin_chain", topics_alone)
    assert (await honest(bench)).uncovered == 1


async def test_the_check_of_a_store_computes_the_chain(bench):
    registry = TopicRegistry(Records(bench.one.resolver))
    await registry.create(bench.topic, {"ttl": "100", "chain": "sha256"})
    hold = await bench.claim()
    await hold.begin_chain()
    ids = await bench.publish(hold, payloads=[b"one", b"two"])
    assert (await verify(bench.one)).problems == []
    row = page_key(bench.log, hold.page)
    column = (await bench.table.columns(Space.MESSAGES, row, b"e", b"f"))[0]
    cells = await bench.table.get(Space.MESSAGES, row, (HEAD, column))
    entry = entries.decode(cells[column].value)
    entry.items = bytes(entry.items[:-3]) + b"six"
    head = cells[HEAD].value
    changed = {HEAD: head, column: entries.encode(entry)}
    assert await bench.table.change(Space.MESSAGES, row, head, changed)
    (problem,) = (await verify(bench.one)).problems
    assert "its messages are not those of its hash" in problem
    assert ids[-1].hex() in problem


@pytest.mark.parametrize("kept", [{"ttl": "5"}, {"ttl": "5", "chain": "sha256"}])
async def test_an_update_keeps_the_chain(bench, kept):
    registry = TopicRegistry(Records(bench.one.resolver))
    await registry.create(bench.topic, {"ttl": "100", "chain": "sha256"})
    updated = await registry.update(bench.topic, kept)
    assert updated.is_chained
    assert updated.ttl_s == 5
