"""The contract of named cursors, as tests, over a record store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.clock import SystemClock
from broker.errors import CursorMoved, NotFound, TooManyCursors
from broker.model import Topic, TopicId, TransactionUse
from broker.storage.records import RecordStore
from broker.topics.cursors import Cursors, forget_cursors
from tests.kit.contract.record_store import RecordHarness

TOPIC = Topic(TopicId("ns", "t"), 1, {"ttl": "60"}, 60, TransactionUse.OPTIONAL)
PLACE = bytes(range(20))
LATER = bytes(range(1, 21))


class CursorsContract:
    """Subclass it with a ``harness`` fixture that gives a RecordHarness."""

    @pytest.fixture
    async def records(self, harness: RecordHarness) -> AsyncIterator[RecordStore]:
        """Give the opened store."""
        yield await harness.open()
        await harness.close()

    @pytest.fixture
    def cursors(self, records: RecordStore) -> Cursors:
        """Give cursors, at most five of one topic."""
        return Cursors(records, SystemClock(), cursors_max=5)

    async def test_a_cursor_is_created_moved_and_deleted(self, cursors: Cursors) -> None:
        with pytest.raises(NotFound):
            await cursors.get(TOPIC, "mailer")
        made = await cursors.put(TOPIC, "mailer", None, None, "")
        assert (made.after, made.before) == (None, None)
        moved = await cursors.put(TOPIC, "mailer", PLACE, made.version, "mine")
        assert moved.version != made.version
        assert await cursors.get(TOPIC, "mailer") == moved
        assert await cursors.delete(TOPIC, "mailer")
        assert not await cursors.delete(TOPIC, "mailer")
        with pytest.raises(NotFound):
            await cursors.get(TOPIC, "mailer")

    async def test_a_put_with_a_wrong_version_is_refused_with_the_current_cursor(
        self, cursors: Cursors
    ) -> None:
        made = await cursors.put(TOPIC, "mailer", None, None, "")
        moved = await cursors.put(TOPIC, "mailer", PLACE, made.version, "")
        for expected in (made.version, "other", None):
            with pytest.raises(CursorMoved) as lost:
                await cursors.put(TOPIC, "mailer", LATER, expected, "")
            assert lost.value.cursor is not None
            assert lost.value.cursor["after"] == PLACE.hex()
        assert await cursors.get(TOPIC, "mailer") == moved
        with pytest.raises(CursorMoved) as absent:
            await cursors.put(TOPIC, "other", LATER, moved.version, "")
        assert absent.value.cursor is None

    async def test_a_repeated_put_is_answered_as_the_first_time(self, cursors: Cursors) -> None:
        made = await cursors.put(TOPIC, "mailer", None, None, "mine")
        assert await cursors.put(TOPIC, "mailer", None, None, "mine") == made
        moved = await cursors.put(TOPIC, "mailer", PLACE, made.version, "mine")
        assert await cursors.put(TOPIC, "mailer", PLACE, made.version, "mine") == moved
        with pytest.raises(CursorMoved):
            await cursors.put(TOPIC, "mailer", PLACE, made.version, "another's")

    async def test_one_of_many_puts_at_once_wins(self, cursors: Cursors) -> None:
        for expected in (None, (await cursors.put(TOPIC, "b", None, None, "")).version):
            name = "a" if expected is None else "b"
            puts = [
                cursors.put(TOPIC, name, PLACE, expected, f"reader {number}") for number in range(6)
            ]
            done = await asyncio.gather(*puts, return_exceptions=True)
            [winner] = [each for each in done if not isinstance(each, BaseException)]
            assert await cursors.get(TOPIC, name) == winner
            lost = [each for each in done if isinstance(each, BaseException)]
            assert {type(each) for each in lost} == {CursorMoved}

    async def test_a_topic_has_at_most_the_allowed_number_of_cursors(
        self, cursors: Cursors
    ) -> None:
        puts = [cursors.put(TOPIC, f"c{number}", None, None, "") for number in range(8)]
        done = await asyncio.gather(*puts, return_exceptions=True)
        refused = [each for each in done if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [TooManyCursors] * 3
        page = await cursors.page(TOPIC, "", 100)
        assert (len(page.cursors), page.next) == (5, None)
        await cursors.delete(TOPIC, page.cursors[0].name)
        await cursors.put(TOPIC, "after-all", None, None, "")

    async def test_pages_go_by_names(self, cursors: Cursors) -> None:
        for name in ("c", "a", "b"):
            await cursors.put(TOPIC, name, None, None, "")
        first = await cursors.page(TOPIC, "", 2)
        assert ([each.name for each in first.cursors], first.next) == (["a", "b"], "b")
        rest = await cursors.page(TOPIC, "b", 2)
        assert ([each.name for each in rest.cursors], rest.next) == (["c"], None)

    async def test_generations_and_topics_are_apart(
        self, cursors: Cursors, records: RecordStore
    ) -> None:
        await cursors.put(TOPIC, "mailer", PLACE, None, "")
        await cursors.put(TOPIC, "gone", PLACE, None, "")
        await cursors.delete(TOPIC, "gone")
        next_one = TOPIC._replace(generation=2)
        longer = TOPIC._replace(id=TopicId("ns", "t2"))
        for other in (next_one, longer):
            with pytest.raises(NotFound):
                await cursors.get(other, "mailer")
        kept = await cursors.put(next_one, "mailer", LATER, None, "")
        also = await cursors.put(longer, "mailer", LATER, None, "")
        # The index and the cursor. The deleted cursor has gone already.
        assert await forget_cursors(records, TOPIC.id, 2) == 2
        assert await forget_cursors(records, TOPIC.id, 2) == 0
        assert await cursors.get(next_one, "mailer") == kept
        assert await cursors.get(longer, "mailer") == also
        assert (await cursors.page(TOPIC, "", 10)).cursors == []

    async def test_cursors_are_there_after_reopening(self, harness: RecordHarness) -> None:
        made = await Cursors(await harness.open(), SystemClock(), cursors_max=5).put(
            TOPIC, "mailer", PLACE, None, "mine"
        )
        await harness.close()
        again = Cursors(await harness.open(), SystemClock(), cursors_max=5)
        assert await again.get(TOPIC, "mailer") == made
        await harness.close()
