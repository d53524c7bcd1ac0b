import asyncio
import threading
from collections.abc import AsyncIterator

import plyvel
import pytest

from broker.errors import BadRequest, OutcomeUnknown, StorageCorrupt, StorageFull, Unavailable
from broker.storage.leveldb.round import Postponed, Round
from broker.storage.leveldb.write_thread import ROUND_BYTES_MAX, Apply, Writer

NEVER_S = 3600.0


class FakeBatch:
    """Collects the puts of a round. A test can hold up its write and make it fail."""

    def __init__(self, database: "FakeDatabase") -> None:
        self._database = database
        self.puts: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.puts[key] = value

    def delete(self, key: bytes) -> None:
        self.puts[key] = b""

    def approximate_size(self) -> int:
        return 12 + sum(len(key) + len(value) for key, value in self.puts.items())

    def write(self) -> None:
        self._database.writing.set()
        assert self._database.may_write.wait(20)
        if self._database.error is not None:
            raise self._database.error
        self._database.written.append(self)


class FakeDatabase:
    def __init__(self) -> None:
        self.written: list[FakeBatch] = []
        self.writing = threading.Event()
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: Exception | None = None
        self.reopen_error: Exception | None = None
        self.reopened = 0
        self.is_open_anew = threading.Event()

    def get(self, key: bytes) -> bytes | None:
        return None

    def keys_of(self, prefix: bytes) -> list[bytes]:
        return []

    def batch(self) -> FakeBatch:
        return FakeBatch(self)

    def reopen(self) -> None:
        if self.reopen_error is not None:
            raise self.reopen_error
        self.reopened += 1
        self.error = None
        self.is_open_anew.set()


@pytest.fixture
def database() -> FakeDatabase:
    return FakeDatabase()


@pytest.fixture
async def writer(database: FakeDatabase) -> AsyncIterator[Writer]:
    made = Writer(database, probe_interval_s=NEVER_S, deadline_s=NEVER_S)
    yield made
    database.may_write.set()
    await made.end()


def putting(key: bytes, value: bytes = b"x") -> Apply:
    def apply(round_: Round) -> bytes:
        round_.batch.put(key, value)
        return key

    return apply


def refusing(error: Exception) -> Apply:
    def apply(_: Round) -> None:
        raise error

    return apply


async def hold_up(database: FakeDatabase, writer: Writer) -> asyncio.Future[bytes]:
    """Let a first write hang, so that the next changes wait for one round."""
    database.may_write.clear()
    database.writing.clear()
    first = writer.submit(putting(b"first"))
    assert await asyncio.to_thread(database.writing.wait, 20)
    return first


async def test_waiting_changes_share_one_write(database: FakeDatabase, writer: Writer) -> None:
    first = await hold_up(database, writer)
    others = [writer.submit(putting(b"%d" % number)) for number in range(5)]
    database.may_write.set()
    assert await first == b"first"
    assert await asyncio.gather(*others) == [b"0", b"1", b"2", b"3", b"4"]
    assert [set(batch.puts) for batch in database.written] == [
        {b"first"},
        {b"0", b"1", b"2", b"3", b"4"},
    ]


async def test_a_change_without_puts_makes_no_write(database: FakeDatabase, writer: Writer) -> None:
    assert await writer.submit(lambda _: "answer") == "answer"
    assert database.written == []


async def test_a_round_has_a_limit_of_bytes(database: FakeDatabase, writer: Writer) -> None:
    first = await hold_up(database, writer)
    large = bytes(ROUND_BYTES_MAX // 2)
    others = [writer.submit(putting(b"%d" % number, large)) for number in range(5)]
    database.may_write.set()
    await asyncio.gather(first, *others)
    assert [sorted(batch.puts) for batch in database.written] == [
        [b"first"],
        [b"0", b"1"],
        [b"2", b"3"],
        [b"4"],
    ]


async def test_a_refusal_concerns_only_its_caller(database: FakeDatabase, writer: Writer) -> None:
    first = await hold_up(database, writer)
    results = [
        writer.submit(putting(b"a")),
        writer.submit(refusing(BadRequest("no"))),
        writer.submit(refusing(ZeroDivisionError("broken"))),
        writer.submit(putting(b"b")),
    ]
    database.may_write.set()
    await first
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [outcomes[0], outcomes[3]] == [b"a", b"b"]
    assert isinstance(outcomes[1], BadRequest)
    assert isinstance(outcomes[2], ZeroDivisionError)
    assert set(database.written[-1].puts) == {b"a", b"b"}


async def test_after_a_write_error_all_changes_are_refused_until_the_database_is_reopened(
    database: FakeDatabase, writer: Writer
) -> None:
    database.error = plyvel.IOError(b"IO error: 000003.log: No space left on device")
    refused = BadRequest("no")
    first = await hold_up(database, writer)
    waiting = [writer.submit(putting(b"a")), writer.submit(refusing(refused))]
    database.reopen_error = OSError(28, "still full")
    database.may_write.set()
    with pytest.raises(StorageFull) as unknown:
        await first
    assert unknown.value.outcome == "unknown"
    assert unknown.value.message == "a write failed: IO error: 000003.log: No space left on device"
    for future in waiting:
        with pytest.raises(StorageFull) as failed:
            await future
        assert failed.value.outcome == "refused"
    with pytest.raises(StorageFull):
        writer.submit(putting(b"b"))
    assert not await writer.probe()
    database.reopen_error = Unavailable("LevelDB can't write its tables")
    assert not await writer.probe()
    assert database.written == []
    database.reopen_error = None
    assert await writer.probe()
    assert database.reopened == 1
    await writer.submit(putting(b"b"))
    assert [set(batch.puts) for batch in database.written] == [{b"b"}]


async def test_changes_submitted_before_a_write_error_is_known_are_not_written_after_it(
    database: FakeDatabase,
) -> None:
    writer = Writer(database, probe_interval_s=0.0, deadline_s=NEVER_S)
    database.error = OSError(5, "Input/output error")
    first = await hold_up(database, writer)
    waiting = writer.submit(putting(b"waiting"))
    database.may_write.set()
    # The event loop is blocked here: it does not learn of the error before the database is reopened.
    assert database.is_open_anew.wait(20)
    while writer.failure is not None:
        threading.Event().wait(0.001)
    untold = writer.submit(putting(b"untold"))
    with pytest.raises(StorageFull, match="Input/output"):
        await first
    for future in (waiting, untold):
        with pytest.raises(StorageFull, match="an earlier write failed") as refused:
            await future
        assert refused.value.outcome == "refused"
    assert await writer.probe()
    assert await writer.submit(putting(b"told")) == b"told"
    assert [set(batch.puts) for batch in database.written] == [{b"told"}]
    await writer.end()


async def test_a_postponed_change_runs_in_the_next_round_in_order(
    database: FakeDatabase, writer: Writer
) -> None:
    def postponed_once(round_: Round) -> bytes:
        if b"a" in database.written[-1].puts:
            return putting(b"b")(round_)  # type: ignore[no-any-return]
        raise Postponed

    first = await hold_up(database, writer)
    order = [writer.submit(putting(b"a")), writer.submit(postponed_once)]
    order.append(writer.submit(putting(b"c")))
    database.may_write.set()
    assert await asyncio.gather(first, *order) == [b"first", b"a", b"b", b"c"]
    assert [set(batch.puts) for batch in database.written] == [{b"first"}, {b"a"}, {b"b", b"c"}]


async def test_a_store_that_reopens_damaged_refuses_changes_as_corrupt(
    database: FakeDatabase, writer: Writer
) -> None:
    database.error = OSError(5, "Input/output error")
    with pytest.raises(StorageFull):
        await writer.submit(putting(b"a"))
    database.reopen_error = StorageCorrupt("a table is missing")
    assert not await writer.probe()
    with pytest.raises(StorageCorrupt, match="a table is missing"):
        writer.submit(putting(b"a"))


@pytest.mark.slow
async def test_a_write_that_hangs_is_unknown_after_its_deadline(database: FakeDatabase) -> None:
    writer = Writer(database, probe_interval_s=NEVER_S, deadline_s=0.3)
    first = await hold_up(database, writer)
    with pytest.raises(OutcomeUnknown, match="not ended"):
        await first
    with pytest.raises(StorageFull):
        writer.submit(putting(b"b"))
    database.may_write.set()
    assert await writer.probe()
    assert database.reopened == 1
    await writer.submit(putting(b"b"))
    await writer.end()


async def test_a_write_that_ends_at_its_deadline_leaves_a_database_that_takes_changes(
    database: FakeDatabase,
) -> None:
    told = threading.Event()
    writer = Writer(database, probe_interval_s=0.0, deadline_s=0.1, observe=lambda *_: told.set())
    first = await hold_up(database, writer)

    def end_the_write() -> None:
        database.may_write.set()
        assert told.wait(20)
        threading.Event().wait(0.05)  # Most likely the thread waits for a change now.

    # The event loop is blocked, then runs this and the check of the deadline before it hears of the end.
    asyncio.get_running_loop().call_later(0.0, end_the_write)
    threading.Event().wait(0.2)
    with pytest.raises(OutcomeUnknown):
        await first
    assert await asyncio.to_thread(database.is_open_anew.wait, 20)
    assert await writer.probe()
    await writer.submit(putting(b"later"))
    await writer.end()


@pytest.mark.slow
async def test_changes_that_wait_for_a_hung_write_are_never_written(database: FakeDatabase) -> None:
    writer = Writer(database, probe_interval_s=NEVER_S, deadline_s=0.3)
    first = await hold_up(database, writer)
    waiting = writer.submit(putting(b"waiting"))
    for future in (first, waiting):
        with pytest.raises(OutcomeUnknown):
            await future
    database.may_write.set()
    assert await writer.probe()
    assert [set(batch.puts) for batch in database.written] == [{b"first"}]
    await writer.end()


async def test_closing_writes_the_waiting_changes(database: FakeDatabase, writer: Writer) -> None:
    first = await hold_up(database, writer)
    last = writer.submit(putting(b"last"))
    closing = asyncio.ensure_future(writer.end())
    database.may_write.set()
    await asyncio.gather(first, last, closing)
    assert set(database.written[-1].puts) == {b"last"}
    await writer.end()  # A second close returns at once.
    with pytest.raises(Unavailable, match="closed"):
        writer.submit(putting(b"later"))


@pytest.mark.slow
async def test_a_close_does_not_wait_for_a_disk_that_hangs(database: FakeDatabase) -> None:
    writer = Writer(database, probe_interval_s=NEVER_S, deadline_s=0.3)
    first = await hold_up(database, writer)
    with pytest.raises(OutcomeUnknown):
        await first
    assert not await writer.end()
    database.may_write.set()
