"""The contract of the record store, as tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from broker.storage.records import RecordStore


class RecordHarness(Protocol):
    """Opens the record store under test. Opening after a close gives the same data."""

    async def open(self) -> RecordStore:
        """Open the store."""

    async def close(self) -> None:
        """Close the store."""


class RecordStoreContract:
    """Subclass it with a ``harness`` fixture that gives a RecordHarness."""

    @pytest.fixture
    async def records(self, harness: RecordHarness) -> AsyncIterator[RecordStore]:
        """Give the opened store."""
        yield await harness.open()
        await harness.close()

    async def test_a_record_that_was_never_put_is_absent(self, records: RecordStore) -> None:
        assert await records.get(b"topic/a") is None
        assert await records.scan_prefix(b"") == []

    async def test_a_record_is_put_if_absent(self, records: RecordStore) -> None:
        version = await records.put_if(b"topic/a", None, b"one")
        assert version is not None
        found = await records.get(b"topic/a")
        assert found is not None
        assert (found.value, found.version) == (b"one", version)
        assert await records.put_if(b"topic/a", None, b"two") is None

    async def test_a_put_needs_the_current_version(self, records: RecordStore) -> None:
        first = await records.put_if(b"k", None, b"one")
        second = await records.put_if(b"k", first, b"two")
        assert second is not None
        assert second != first
        assert await records.put_if(b"k", first, b"three") is None
        assert await records.put_if(b"other", first, b"x") is None
        found = await records.get(b"k")
        assert found is not None
        assert found.value == b"two"

    async def test_putting_an_equal_value_makes_a_new_version(self, records: RecordStore) -> None:
        first = await records.put_if(b"k", None, b"one")
        second = await records.put_if(b"k", first, b"one")
        assert second not in (None, first)
        assert await records.put_if(b"k", first, b"late") is None

    async def test_an_empty_value_is_a_value(self, records: RecordStore) -> None:
        assert await records.put_if(b"k", None, b"") is not None
        found = await records.get(b"k")
        assert found is not None
        assert found.value == b""
        assert await records.put_if(b"k", None, b"x") is None

    async def test_scans_give_a_prefix_in_order(self, records: RecordStore) -> None:
        for key in (b"a/2", b"a/1", b"b/1", b"a", b"a/\xff", b"a0"):
            await records.put_if(key, None, b"value of " + key)
        found = await records.scan_prefix(b"a/")
        assert [key for key, _ in found] == [b"a/1", b"a/2", b"a/\xff"]
        assert [record.value for _, record in found] == [b"value of " + key for key, _ in found]
        assert len(await records.scan_prefix(b"")) == 6
        one = await records.get(b"a/1")
        assert one == found[0][1]

    async def test_one_of_many_puts_at_once_wins(self, records: RecordStore) -> None:
        version = await records.put_if(b"k", None, b"0")
        results = await asyncio.gather(
            *(records.put_if(b"k", version, str(number).encode()) for number in range(8))
        )
        [winner] = [number for number, result in enumerate(results) if result is not None]
        found = await records.get(b"k")
        assert found is not None
        assert (found.value, found.version) == (str(winner).encode(), results[winner])

    async def test_records_that_are_removed_are_absent(self, records: RecordStore) -> None:
        for key in (b"a", b"b", b"c"):
            await records.put_if(key, None, b"value")
        await records.remove([b"a", b"c", b"never put"])
        assert [key for key, _ in await records.scan_prefix(b"")] == [b"b"]
        await records.remove([b"a"])

    async def test_records_are_there_after_reopening(self, harness: RecordHarness) -> None:
        records = await harness.open()
        version = await records.put_if(b"k", None, b"one")
        await harness.close()
        records = await harness.open()
        found = await records.get(b"k")
        assert found is not None
        assert (found.value, found.version) == (b"one", version)
        assert await records.put_if(b"k", version, b"two") is not None
        await harness.close()
