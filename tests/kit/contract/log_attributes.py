"""The contract of the log protocol: messages keep their attributes. See log.py."""

from __future__ import annotations

from broker.model import LOG_KEY_MIN, LogKey
from broker.storage.entry import Shared
from broker.storage.hold import LogHold
from broker.storage.payloads import PayloadLogs
from tests.kit.contract.log_bench import ALL, Bench, LogSuite, all_of, attributes_of, rows_of

SOME = (b"first", b"", b"third")


def given(ids: list[LogKey]) -> dict[LogKey, bytes]:
    """Return the attributes of three messages that were published with SOME."""
    return {ids[0]: SOME[0], ids[2]: SOME[2]}


class AttributesContract(LogSuite):
    """Attributes are stored with their messages."""

    async def test_attributes_come_back_with_their_messages(
        self, bench: Bench, hold: LogHold
    ) -> None:
        wanted: dict[LogKey, bytes] = {}
        for number in range(12):  # Small plain entries in several pages; a reader joins them.
            shared = Shared(pointer=number) if number % 5 == 4 else Shared()
            await bench.publish(hold, 1)
            wanted |= given(await bench.publish(hold, 3, shared, attributes=SOME))
        second = await bench.claim(bench.other, "other")
        wanted |= given(await bench.publish(second, 3, attributes=SOME))
        assert attributes_of(await all_of(bench.one.reader(bench.log, LOG_KEY_MIN))) == wanted
        piecemeal = bench.other.reader(bench.log, LOG_KEY_MIN)
        found = []
        while not piecemeal.ended:
            found += await piecemeal.next(1, 1)
        assert attributes_of(found) == wanted
        assert len(rows_of(found)) == 12 * 4 + 3

    async def test_a_message_with_large_attributes_has_an_entry_of_its_own(
        self, bench: Bench, hold: LogHold
    ) -> None:
        attributes = [bytes([number]) * 10_000 for number in range(1, 5)]
        ids = await bench.publish(hold, 4, attributes=attributes)
        found = await all_of(bench.other.reader(bench.log, LOG_KEY_MIN))
        assert [entry.count for entry in found] == [1] * 4
        assert attributes_of(found) == dict(zip(ids, attributes, strict=True))

    async def test_a_rollback_keeps_attributes(self, bench: Bench, hold: LogHold) -> None:
        ids = await bench.publish(hold, 3, Shared(pointer=7), attributes=SOME)
        await hold.rollback(7, ids[0], ids[0])
        assert await bench.hidden() == ids[:1]
        assert attributes_of(await all_of(bench.other.reader(bench.log, LOG_KEY_MIN))) == given(ids)

    async def test_payload_logs_keep_attributes(self, bench: Bench, hold: LogHold) -> None:
        payloads = await PayloadLogs(bench.one, "one").open(hold, 7)
        ids = await bench.publish(payloads, 3, Shared(is_stored=True), attributes=SOME)
        reader = bench.other.reader(bench.log._replace(number=7), LOG_KEY_MIN)
        assert attributes_of(await reader.next(ALL)) == given(ids)

    async def test_attributes_are_removed_when_their_messages_expire(
        self, bench: Bench, hold: LogHold
    ) -> None:
        await bench.publish(hold, 3, Shared(lifetime_ms=1), attributes=SOME)
        await hold.end_lives(hold.page, bench.ms + 100)
        (stub,) = await all_of(bench.other.reader(bench.log, LOG_KEY_MIN))
        assert stub.is_stub
        assert attributes_of([stub]) == {}
