"""The contract of the table (broker/storage/table.py), as tests.

Each test has its own topic and records, because all tests may share one store, and because the broker never writes a
deleted key again. The keys have the broker's format. The table itself says what may differ between stores (limits,
clocks).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

import pytest

from broker.errors import BodyTooLarge, Unavailable
from broker.model import TopicId, log_key
from broker.storage.keys import MARK, LogId, page_key, side_prefix
from broker.storage.table import HEAD, Space, Table, TableError

ENTRIES: Final = (Space.MESSAGES, Space.PAYLOADS)
"""The spaces whose rows have more than a head."""
MANY: Final = 1 << 20
LARGE: Final = 16 << 20
"""The largest cell that tests write, whatever the store allows."""
FIRST: Final = b"\x00"
LAST: Final = b"\xff" * 40


class TableHarness(Protocol):
    """Opens the table under test. Opening after a close gives the same data."""

    async def open(self) -> Table:
        """Open the table."""


class Place(NamedTuple):
    """The keys of one test."""

    token: str

    @property
    def topic(self) -> TopicId:
        """A topic that no other test has."""
        return TopicId("contract", f"t-{self.token}")

    def key(self, space: Space, ms: int = 1) -> bytes:
        """Return a key that sorts by ``ms``: of a page, or of a record."""
        if space is Space.RECORDS:
            return b"contract/%s/\x00'\"\xff/%08d" % (self.token.encode(), ms)
        return page_key(
            LogId(self.topic, 1, None if space is Space.MESSAGES else -7), log_key(ms, 3)
        )


def column(number: int, kind: bytes = b"p") -> bytes:
    """Return an entry's column that sorts by ``number``."""
    return b"e" + log_key(number, 0xFF00) + kind


async def make(
    table: Table, space: Space, row: bytes, cells: Mapping[bytes, bytes] | None = None
) -> None:
    """Make a row with the head ``made`` and these cells."""
    assert await table.change(space, row, None, {HEAD: b"made", **(cells or {})}) is True


async def head_of(table: Table, space: Space, row: bytes) -> bytes | None:
    """Return the value of a row's head."""
    cell = (await table.get(space, row, [HEAD])).get(HEAD)
    return None if cell is None else cell.value


async def cells_of(
    table: Table, space: Space, row: bytes, first: bytes = FIRST, last: bytes = LAST
) -> dict[bytes, bytes]:
    """Return the cells of a row in a range, without its head."""
    cells, more = await table.cells(space, row, first, last, cells_max=MANY, bytes_max=LARGE)
    assert not more
    assert await table.columns(space, row, first, last) == [name for name, _ in cells]
    return dict(cells)


class TableSuite:
    """The fixtures that all suites of the table share."""

    @pytest.fixture
    async def table(self, harness: TableHarness) -> AsyncIterator[Table]:
        """Give the opened table."""
        opened = await harness.open()
        yield opened
        await opened.close()

    @pytest.fixture
    def place(self) -> Place:
        """Give a place of its own to a test."""
        return Place(secrets.token_hex(6))


class ChangeContract(TableSuite):
    """The effects of ``change`` on a row."""

    @pytest.mark.parametrize("space", Space)
    async def test_a_row_that_was_never_written_is_absent(
        self, table: Table, place: Place, space: Space
    ) -> None:
        row = place.key(space)
        assert await table.get(space, row, [HEAD]) == {}
        assert await table.scan(space, row, row, limit=9) == []
        assert await table.change(space, row, b"made", {HEAD: b"2"}) is False
        assert await table.get(space, row, [HEAD]) == {}

    @pytest.mark.parametrize("space", Space)
    async def test_a_change_needs_the_exact_value_of_the_head(
        self, table: Table, place: Place, space: Space
    ) -> None:
        row = place.key(space)
        heads = [b"one", b"\x00one\xff'\"", b"on", b"\x00", bytes(range(256))]
        expected: bytes | None = None
        for head in heads:
            wrong = [None, b"ONE", b"one\x00", b"one ", *heads, (expected or b"o")[:-1] + b"\x01"]
            for other in wrong:
                if other != expected:
                    assert await table.change(space, row, other, {HEAD: b"wrong"}) is False
            assert await head_of(table, space, row) == expected
            assert await table.change(space, row, expected, {HEAD: head}) is True
            assert await head_of(table, space, row) == head
            expected = head

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_all_cells_of_a_change_are_there_together(
        self, table: Table, place: Place, space: Space
    ) -> None:
        row, cells = place.key(space), {column(n): b"%d" % n for n in range(50)}
        await make(table, space, row, cells)
        assert await cells_of(table, space, row) == cells
        found = await table.get(space, row, [HEAD, *cells])
        assert {name: cell.value for name, cell in found.items()} == {HEAD: b"made", **cells}

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_false_changes_nothing(self, table: Table, place: Place, space: Space) -> None:
        row, cells = place.key(space), {column(n): b"%d" % n for n in range(3)}
        await make(table, space, row, cells)
        for expected in (None, b"other"):
            puts = {HEAD: b"2", column(1): b"new", column(9): b"new"}
            assert await table.change(space, row, expected, puts, [column(0)]) is False
            assert await table.change(space, row, expected, {HEAD: b"2"}, clear=True) is False
        assert await head_of(table, space, row) == b"made"
        assert await cells_of(table, space, row) == cells

    async def test_a_refused_change_of_an_absent_row_leaves_no_row(
        self, table: Table, place: Place
    ) -> None:
        row = place.key(Space.MESSAGES)
        puts = {HEAD: b"2", column(1): b"new"}
        assert await table.change(Space.MESSAGES, row, b"made", puts) is False
        assert await cells_of(table, Space.MESSAGES, row) == {}
        assert await table.scan(Space.MESSAGES, row, row, limit=9) == []

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_a_change_touches_only_the_cells_that_it_names(
        self, table: Table, place: Place, space: Space
    ) -> None:
        row = place.key(space)
        await make(table, space, row, {column(n): b"%d" % n for n in range(4)})
        assert await table.change(space, row, b"made", {HEAD: b"2"})
        puts = {HEAD: b"3", column(1): b"new", column(7): b"7"}
        assert await table.change(space, row, b"2", puts, [column(0), column(5)])
        expected = {column(1): b"new", column(2): b"2", column(3): b"3", column(7): b"7"}
        assert await cells_of(table, space, row) == expected
        assert await head_of(table, space, row) == b"3"

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_a_clear_leaves_the_head_alone(
        self, table: Table, place: Place, space: Space
    ) -> None:
        rows = [place.key(space, ms) for ms in (1, 2, 3)]
        cells = {column(n): bytes(100) for n in range(60)} | {b"x" + column(3): b"x"}
        for row in rows:
            await make(table, space, row, cells)
        assert await table.change(space, rows[1], b"made", {HEAD: b"gone"}, clear=True)
        assert await cells_of(table, space, rows[1]) == {}
        assert await table.get(space, rows[1], list(cells)) == {}
        assert await head_of(table, space, rows[1]) == b"gone"
        assert await table.change(space, rows[1], None, {HEAD: b"late"}) is False
        for row in (rows[0], rows[2]):
            assert await cells_of(table, space, row) == cells

    async def test_one_of_many_changes_from_one_head_wins(self, table: Table, place: Place) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        expected: bytes | None = None
        kept: dict[bytes, bytes] = {}
        for turn in range(4):
            puts = [
                {HEAD: b"%d/%d" % (turn, n), column(100 * turn + n): b"%d" % n} for n in range(16)
            ]
            results = await asyncio.gather(
                *(table.change(space, row, expected, each) for each in puts)
            )
            assert sorted(results) == [False] * 15 + [True]
            winner = puts[results.index(True)]
            expected = winner.pop(HEAD)
            kept |= winner
            assert await head_of(table, space, row) == expected
            assert await cells_of(table, space, row) == kept

    async def test_no_change_of_many_writers_is_lost(self, table: Table, place: Place) -> None:
        space, row = Space.PAYLOADS, place.key(Space.PAYLOADS)
        await make(table, space, row)
        assert await table.change(space, row, b"made", {HEAD: b"0"})

        async def write(writer: int) -> None:
            done = 0
            while done < 4:
                head = await head_of(table, space, row)
                assert head is not None
                new = b"%d" % (int(head) + 1)
                done += await table.change(
                    space, row, head, {HEAD: new, column(int(new)): b"%d" % writer}
                )

        await asyncio.gather(*map(write, range(6)))
        assert await head_of(table, space, row) == b"24"
        cells = await cells_of(table, space, row)
        assert sorted(cells) == [column(n) for n in range(1, 25)]
        assert sorted(cells.values()) == sorted(b"%d" % n for n in range(6) for _ in range(4))

    async def test_the_servers_time_never_falls(self, table: Table, place: Place) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        await make(table, space, row)
        times = []
        for turn in range(5):
            head = await head_of(table, space, row)
            await table.change(space, row, head, {HEAD: b"%d" % turn, column(turn): b""})
            found = await table.get(space, row, [HEAD, column(turn)])
            [(_, scanned)] = await table.scan(space, row, row, limit=1)
            assert scanned == found[HEAD]
            times.append(found[HEAD].server_ms)
        known = [ms for ms in times if ms is not None]
        assert len(known) in (0, len(times))
        assert known == sorted(known)

    async def test_written_rows_are_there_after_reopening(
        self, harness: TableHarness, place: Place
    ) -> None:
        table = await harness.open()
        for space in ENTRIES:
            await make(table, space, place.key(space), {column(1): b"one"})
        await table.put(Space.RECORDS, {place.key(Space.RECORDS): b"record"})
        await table.close()
        table = await harness.open()
        for space in ENTRIES:
            row = place.key(space)
            assert await cells_of(table, space, row) == {column(1): b"one"}
            assert await table.change(space, row, None, {HEAD: b"2"}) is False
            assert await table.change(space, row, b"made", {HEAD: b"2"}) is True
        assert await head_of(table, Space.RECORDS, place.key(Space.RECORDS)) == b"record"
        await table.close()

    @pytest.mark.parametrize("space", Space)
    async def test_after_a_close_every_call_is_refused(
        self, harness: TableHarness, place: Place, space: Space
    ) -> None:
        table, row = await harness.open(), place.key(space)
        await make(table, space, row)
        await table.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: table.change(space, row, b"made", {HEAD: b"2"}),
            lambda: table.get(space, row, [HEAD]),
            lambda: table.cells(space, row, FIRST, LAST, cells_max=1, bytes_max=1),
            lambda: table.columns(space, row, FIRST, LAST),
            lambda: table.scan(space, row, row, limit=1),
            lambda: table.put(space, {row: b"2"}),
            lambda: table.delete(space, [row]),
        ]
        for call in calls:
            with pytest.raises((TableError, Unavailable)):
                await call()
        table = await harness.open()
        assert await head_of(table, space, row) == b"made"
        await table.close()


class BytesContract(TableSuite):
    """Rows, columns and values of any bytes and sizes."""

    async def test_the_spaces_are_apart(self, table: Table, place: Place) -> None:
        row = place.key(Space.MESSAGES)
        await make(table, Space.MESSAGES, row, {column(1): b"m"})
        assert await head_of(table, Space.PAYLOADS, row) is None
        assert await head_of(table, Space.RECORDS, row) is None
        await make(table, Space.PAYLOADS, row, {column(1): b"p"})
        await table.put(Space.RECORDS, {row: b"record"})
        await table.delete(Space.PAYLOADS, [row])
        assert await cells_of(table, Space.MESSAGES, row) == {column(1): b"m"}
        assert await cells_of(table, Space.PAYLOADS, row) == {}
        assert await head_of(table, Space.PAYLOADS, row) is None
        assert await head_of(table, Space.RECORDS, row) == b"record"

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_rows_whose_keys_begin_alike_are_apart(
        self, table: Table, place: Place, space: Space
    ) -> None:
        short = place.key(space)
        rows = [short, *(short + end for end in (b"\x00", b"\x00\x00", b"e", b"h", b"he", b"\xff"))]
        names = (b"e", b"ee", b"eee", b"eh", b"e\x00", b"e\xff")
        for row in rows:
            await make(table, space, row, {name: row + name for name in names})
        assert [key for key, _ in await table.scan(space, short, short + LAST, limit=99)] == rows
        await table.delete(space, [rows[1]])
        assert await table.change(space, short, b"made", {HEAD: b"gone"}, clear=True)
        assert await cells_of(table, space, short) == {}
        assert await cells_of(table, space, rows[1]) == {}
        for row in rows[2:]:
            assert await cells_of(table, space, row) == {name: row + name for name in names}
            assert await head_of(table, space, row) == b"made"

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_columns_and_values_have_any_bytes(
        self, table: Table, place: Place, space: Space
    ) -> None:
        row = place.key(space, 0x27225C00FF0A)
        ends = (b"", b"\x00", b"\x00\x00", b"\n", b" ", b'"', b"%s", b"'", b"''", b"*", b":", b"=")
        names = [b"e" + end for end in (*ends, b"\\", b"`", b"h", b"\x80", b"\xff", b"\xff\xff")]
        names += [b"h\x00", b"h1", b"x'\"\x00\xff"]
        values = (b"", b"\x00", b"'", bytes(range(256)), b"\xff" * 9)
        cells = {name: values[n % len(values)] for n, name in enumerate(names)}
        await make(table, space, row, cells)
        assert list((await cells_of(table, space, row)).items()) == sorted(cells.items())
        for name, value in cells.items():
            assert await cells_of(table, space, row, name, name) == {name: value}
            found = await table.get(space, row, [name])
            assert {key: cell.value for key, cell in found.items()} == {name: value}
        assert await table.change(space, row, b"made", {HEAD: b"'\x00\xff\""}, names[::2])
        assert sorted(await cells_of(table, space, row)) == sorted(names[1::2])

    async def test_a_cell_may_be_as_large_as_the_table_says(
        self, table: Table, place: Place
    ) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        size = min(table.cell_bytes_max, table.change_bytes_max - 4, LARGE)
        value = secrets.token_bytes(size)
        await make(table, space, row, {column(1): value, column(2): b""})
        found, more = await table.cells(space, row, FIRST, LAST, cells_max=9, bytes_max=1)
        assert (found, more) == ([(column(1), value)], True)
        assert (await table.get(space, row, [column(1)]))[column(1)].value == value
        assert await table.columns(space, row, FIRST, LAST) == [column(1), column(2)]

    async def test_too_large_a_cell_is_refused(self, table: Table, place: Place) -> None:
        space, row = Space.PAYLOADS, place.key(Space.PAYLOADS)
        await make(table, space, row, {column(1): b"1"})
        value = bytes(table.cell_bytes_max + 1)
        with pytest.raises(BodyTooLarge):
            await table.change(space, row, b"made", {HEAD: b"2", column(2): value}, [column(1)])
        with pytest.raises(BodyTooLarge):
            await table.put(space, {row: value})
        assert await head_of(table, space, row) == b"made"
        assert await cells_of(table, space, row) == {column(1): b"1"}

    async def test_too_large_a_change_is_refused(self, table: Table, place: Place) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        value = bytes(min(table.cell_bytes_max, table.change_bytes_max))
        cells = {column(n): value for n in range(table.change_bytes_max // len(value))}
        rest = table.change_bytes_max - len(value) * len(cells)
        with pytest.raises(BodyTooLarge):
            await table.change(space, row, None, {HEAD: b"1", column(MANY): bytes(rest), **cells})
        assert await head_of(table, space, row) is None
        assert await table.columns(space, row, FIRST, LAST) == []


class ReadContract(TableSuite):
    """Reads, scans, unconditional puts and deletes."""

    async def test_get_returns_the_named_cells(self, table: Table, place: Place) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        await make(table, space, row, {column(n): b"%d" % n for n in range(5)})
        found = await table.get(space, row, [column(3), column(9), column(1)])
        assert {name: cell.value for name, cell in found.items()} == {
            column(1): b"1",
            column(3): b"3",
        }
        assert await table.get(space, row, [column(9)]) == {}
        assert await table.get(space, row + b"0", [HEAD, column(1)]) == {}

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_a_read_shows_one_moment(self, table: Table, place: Place, space: Space) -> None:
        row, names = place.key(space), [column(n) for n in range(8)]
        await make(table, space, row, dict.fromkeys(names, b"made"))

        async def write() -> None:
            expected = b"made"
            for turn in range(40):
                new = b"%d" % turn
                puts = {HEAD: new, **dict.fromkeys(names, new)}
                assert await table.change(space, row, expected, puts)
                expected = new
                await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        turns = 0
        while turns < 10 or not writer.done():
            found = await table.get(space, row, [HEAD, *names])
            assert len(found) == 9
            assert len({cell.value for cell in found.values()}) == 1
            cells, _ = await table.cells(space, row, FIRST, LAST, cells_max=9, bytes_max=LARGE)
            assert [name for name, _ in cells] == names
            assert len({value for _, value in cells}) == 1
            turns += 1
            await asyncio.sleep(0)
        await writer

    @pytest.mark.parametrize("space", ENTRIES)
    async def test_cells_and_columns_give_a_range_with_both_its_ends(
        self, table: Table, place: Place, space: Space
    ) -> None:
        row, names = place.key(space), [column(n) for n in range(20)]
        await make(table, space, row, {name: name[1:] for name in names})
        ranges = [
            (column(4), column(7), names[4:8]),
            (column(4) + b"\x00", column(7), names[5:8]),
            (column(4), column(7, b"o"), names[4:7]),
            (column(6), column(6), names[6:7]),
            (b"e", b"f", names),
            (b"a", b"e", []),
            (b"f", b"z", []),
            (column(7), column(4), []),
        ]
        for first, last, expected in ranges:
            assert await table.columns(space, row, first, last) == expected
            for reverse in (False, True):
                cells, more = await table.cells(
                    space, row, first, last, cells_max=MANY, bytes_max=LARGE, reverse=reverse
                )
                order = expected[::-1] if reverse else expected
                assert (cells, more) == ([(name, name[1:]) for name in order], False)
        absent = row + b"0"
        assert await cells_of(table, space, absent) == {}

    async def test_the_head_is_never_among_the_cells(self, table: Table, place: Place) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        await make(table, space, row, {b"g": b"g", b"i": b"i"})
        assert await cells_of(table, space, row) == {b"g": b"g", b"i": b"i"}
        assert await cells_of(table, space, row, HEAD, HEAD) == {}
        bare = place.key(Space.MESSAGES, 2)
        await make(table, space, bare)
        assert await cells_of(table, space, bare) == {}

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize(("cells_max", "bytes_max"), [(3, LARGE), (MANY, 2500), (MANY, 1)])
    async def test_cells_stop_at_a_limit_and_say_that_there_are_more(
        self, table: Table, place: Place, cells_max: int, bytes_max: int, *, reverse: bool
    ) -> None:
        space, row = Space.PAYLOADS, place.key(Space.PAYLOADS)
        names = [column(n) for n in range(10)]
        await make(table, space, row, {name: name * 90 for name in names})
        seen: list[bytes] = []
        first, last = names[0], names[-1]
        answers = 0
        more = True
        while more:
            cells, more = await table.cells(
                space, row, first, last, cells_max=cells_max, bytes_max=bytes_max, reverse=reverse
            )
            assert all(value == name * 90 for name, value in cells)
            assert cells or not more, "no cell, and more of them"
            assert len(cells) <= cells_max
            assert sum(len(value) for _, value in cells) <= bytes_max + len(names[0]) * 90
            seen += [name for name, _ in cells]
            answers += 1
            if more and reverse:
                last = column(names.index(seen[-1]) - 1, b"\xff")
            elif more:
                first = seen[-1] + b"\x00"
        assert seen == (names[::-1] if reverse else names)
        assert answers >= 4

    async def test_an_answer_of_no_more_cells_is_certain(self, table: Table, place: Place) -> None:
        space, row = Space.MESSAGES, place.key(Space.MESSAGES)
        await make(table, space, row, {column(n): b"1" for n in range(4)})
        for cells_max in (3, 4, 5):
            cells, more = await table.cells(
                space, row, FIRST, LAST, cells_max=cells_max, bytes_max=LARGE
            )
            assert len(cells) == min(cells_max, 4)
            assert more or len(cells) == 4
            assert not (more and cells_max > 4)

    @pytest.mark.parametrize("space", Space)
    async def test_a_scan_gives_heads_in_order(
        self, table: Table, place: Place, space: Space
    ) -> None:
        keys = [place.key(space, ms) for ms in range(10)]
        cells = {} if space is Space.RECORDS else {column(1): b"not in a scan"}
        for n in (3, 9, 0, 7, 1, 2, 8, 4, 6, 5):
            await make(table, space, keys[n], cells)
            assert await table.change(space, keys[n], b"made", {HEAD: b"head %d" % n})

        async def scan(
            first: bytes, last: bytes, *, limit: int = 99, reverse: bool = False
        ) -> list[int]:
            found = await table.scan(space, first, last, limit=limit, reverse=reverse)
            assert all(cell.value == b"head %d" % keys.index(key) for key, cell in found)
            return [keys.index(key) for key, _ in found]

        assert await scan(keys[0], keys[9]) == list(range(10))
        assert await scan(keys[0], keys[9], reverse=True) == list(range(9, -1, -1))
        assert await scan(keys[2], keys[5]) == [2, 3, 4, 5]
        assert await scan(keys[2] + b"\x00", keys[5]) == [3, 4, 5]
        assert await scan(keys[2], keys[5] + b"\xff", reverse=True) == [5, 4, 3, 2]
        assert await scan(keys[4], keys[4]) == [4]
        assert await scan(keys[4] + b"\x00", keys[4] + b"\x01") == []
        assert await scan(keys[5], keys[2]) == []
        for limit in (1, 3, 10, 11):
            assert await scan(keys[0], keys[9], limit=limit) == list(range(min(limit, 10)))
            backwards = list(range(9, -1, -1))[:limit]
            assert await scan(keys[0], keys[9], limit=limit, reverse=True) == backwards

    async def test_a_scan_sees_one_topic(self, table: Table, place: Place) -> None:
        space = Space.MESSAGES
        other = place._replace(token=place.token + "-2")
        await make(table, space, place.key(space))
        await make(table, space, other.key(space))
        found = await table.scan(space, place.key(space, 0), place.key(space, 9), limit=9)
        assert [key for key, _ in found] == [place.key(space)]

    @pytest.mark.parametrize("space", [Space.MESSAGES, Space.RECORDS])
    async def test_a_scan_returns_as_many_rows_as_requested(
        self, table: Table, place: Place, space: Space
    ) -> None:
        keys = [place.key(space, ms) for ms in range(2500)]
        await table.put(space, {key: b"%d" % n * 40 for n, key in enumerate(keys)})
        for limit in (2400, 2500, 2600):
            found = await table.scan(space, keys[0], keys[-1], limit=limit)
            assert [key for key, _ in found] == keys[:limit]
            found = await table.scan(space, keys[0], keys[-1], limit=limit, reverse=True)
            assert [key for key, _ in found] == keys[::-1][:limit]

    async def test_a_scan_is_not_cut_by_large_heads(self, table: Table, place: Place) -> None:
        space, size = Space.RECORDS, 64 << 10
        keys = [place.key(space, ms) for ms in range(100)]
        for key in keys:
            await table.put(space, {key: key[-1:] * size})
        for reverse in (False, True):
            found = await table.scan(space, keys[0], keys[-1], limit=200, reverse=reverse)
            assert [key for key, _ in found] == (keys[::-1] if reverse else keys)
            assert all(cell.value == key[-1:] * size for key, cell in found)

    async def test_a_put_has_no_condition(self, table: Table, place: Place) -> None:
        space = Space.MESSAGES
        mark = side_prefix(LogId(place.topic, 1), MARK)
        rows = [mark + bytes([n]) * 16 + log_key(n, 0) for n in range(3)]
        await make(table, space, rows[1], {column(1): b"stays"})
        await table.put(space, {row: b"put %d" % n for n, row in enumerate(rows)})
        await table.put(space, {rows[0]: b"again"})
        await table.put(space, {})
        found = await table.scan(space, mark, mark + LAST, limit=9)
        assert [(key, cell.value) for key, cell in found] == [
            (rows[0], b"again"),
            (rows[1], b"put 1"),
            (rows[2], b"put 2"),
        ]
        assert await cells_of(table, space, rows[1]) == {column(1): b"stays"}
        assert await table.change(space, rows[0], b"again", {HEAD: b"changed"})

    @pytest.mark.parametrize("space", Space)
    async def test_a_delete_removes_rows_wholly(
        self, table: Table, place: Place, space: Space
    ) -> None:
        rows = [place.key(space, ms) for ms in range(6)]
        cells = {} if space is Space.RECORDS else {column(n): bytes(50) for n in range(20)}
        for row in rows:
            await make(table, space, row, cells)
        await table.delete(space, [])
        await table.delete(space, [rows[4], rows[1], place.key(space, 99)])
        await table.delete(space, [rows[1]])
        left = [rows[n] for n in (0, 2, 3, 5)]
        assert [key for key, _ in await table.scan(space, rows[0], rows[5], limit=9)] == left
        for row in rows:
            assert (await head_of(table, space, row) is not None) == (row in left)
            if cells:
                assert await cells_of(table, space, row) == (cells if row in left else {})
        assert await table.change(space, rows[1], b"made", {HEAD: b"2"}) is False


class TableContract(ChangeContract, BytesContract, ReadContract):
    """Subclass it with a ``harness`` fixture that gives a TableHarness."""
