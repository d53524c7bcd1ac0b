"""Publishing, storing and rolling back."""

from broker.model import RollbackRange, log_key, unpack_log_key
from broker.wire.varint import encode_long
from tests.conformance.script import Script


def messages_in_order(s: Script) -> None:
    s.create("t")
    s.poll("t")
    s.publish("t", "a")
    s.publish("t", "b", "c", "d")
    s.publish("t", "")
    s.publish("t", "", "", "e")
    s.publish("t")
    s.poll("t")


def array_forms(s: Script) -> None:
    """Arrays in several blocks, blocks with a size, and bytes after the end."""
    s.create("t")
    two = b"\x02a\x02b"
    s.publish_raw("t", b"\x02\x02\x02a\x02\x02b\x00", label="two blocks")
    s.publish_raw("t", b"\x02\x01\x04\x02c\x00", label="a block with its size")
    s.publish_raw("t", b"\x02\x04" + two + b"\x01\x04\x02d" + b"\x00", label="both")
    s.publish_raw("t", b"\x02\x02\x02e\x00more", label="bytes after the end")
    s.publish_raw("t", b"\x82\x00\x82\x00\x82\x00f\x80\x00", label="long varints")
    s.poll("t")


def many_messages_in_one_request(s: Script) -> None:
    s.create("t")
    s.publish("t", *(str(number) for number in range(20_000)))
    s.poll("t")
    s.poll("t", limit=12_345)
    s.publish("t", *(str(number) for number in range(70_000)))
    s.poll("t")


def large_messages(s: Script) -> None:
    """Messages with about the size of a reply's chunk."""
    s.create("t")
    for size in (59_000, 59_999, 60_000, 60_001, 130_000, 1_000_000):
        s.publish("t", "x" * size)
        s.publish("t", str(size))
    for limit in (1, 2, 3, 12):
        s.poll("t", limit=limit)


def transactional_messages(s: Script) -> None:
    s.create("t")
    s.publish("t", "a", tx=1)
    s.publish("t", "b", "c", tx=2)
    s.publish("t", "d")
    s.publish("t", "e", tx=1)
    s.poll("t")
    for read in (0, 1, 2, 3):
        s.poll("t", snapshot=s.snapshot(read), said=f"reading up to tx{read}")


def ages_of_transactions(s: Script) -> None:
    s.create("t")
    for pointer in (1, 0, 1_000_000, 1_480_000_000_000_000_000, -1, -(1 << 63)):
        head = b"\x00" + encode_long(pointer)
        s.publish_raw("t", head + b"\x02\x02a\x00", label=f"publish under {pointer}")
        s.publish_raw("t", head + b"\x00", label=f"reference to {pointer}")
    s.poll("t")
    s.publish_raw("t", b"\x00" + encode_long((1 << 63) - 1) + b"\x02\x02a\x00", label="far ahead")
    s.poll("t")


def old_transactions_store(s: Script) -> None:
    s.create("t")
    s.store("t", "a", tx=-(10**17))
    s.poll("t")


def stored_messages(s: Script) -> None:
    s.create("t")
    s.store("t", "a")
    s.store("t", tx=1)
    s.store("t")
    s.store("t", "a", "b", tx=1)
    s.store("t", "c", tx=2)
    s.store("t", "d", "", tx=1)
    s.poll("t")
    s.publish("t", "inline")
    s.publish("t", tx=1)
    s.poll("t")
    s.publish("t", tx=2)
    s.poll("t")
    s.publish("t", tx=3)
    s.publish("t", "last")
    s.poll("t")
    for read in (0, 1, 2, 3):
        s.poll("t", snapshot=s.snapshot(read), said=f"reading up to tx{read}")


def inline_beside_stored(s: Script) -> None:
    s.create("t")
    s.store("t", "stored", tx=1)
    s.publish("t", "inline", tx=1)
    s.poll("t")
    s.publish("t", tx=1)
    s.publish("t", "later", tx=1)
    s.poll("t")


def storing_after_the_reference(s: Script) -> None:
    s.create("t")
    s.store("t", "a", tx=1)
    s.publish("t", tx=1)
    s.store("t", "late", tx=1)
    s.publish("t", tx=2)
    s.store("t", "late", tx=2)
    s.store("t", "in time", tx=3)
    s.publish("t", tx=3)
    s.show("t")


def the_same_reference_twice(s: Script) -> None:
    s.create("t")
    s.store("t", "a", "b", tx=1)
    first = s.publish("t", tx=1)
    right = s.poll("t")
    s.publish("t", "between")
    s.publish("t", tx=1)
    between = s.poll("t", limit=3)[2:]
    s.poll("t", right=[*right, *between])
    s.rollback("t", first, "the first answer")
    s.poll("t", snapshot=s.snapshot(5), said="as of tx5", right=between)


def rolling_back(s: Script) -> None:
    s.create("t")
    s.publish("t", "before")
    one = s.publish("t", "a", "b", tx=1)
    s.publish("t", "between")
    two = s.publish("t", "c", tx=2)
    s.store("t", "d", "e", tx=3)
    three = s.publish("t", tx=3)
    s.publish("t", "after")
    s.poll("t")
    s.poll("t", snapshot=s.snapshot(9), said="as of tx9")
    for published, said in ((one, "tx1"), (three, "tx3"), (two, "tx2")):
        s.rollback("t", published, said)
        s.poll("t")
        s.poll("t", snapshot=s.snapshot(9), said="as of tx9")
        s.poll("t", snapshot=s.snapshot(0), said="as of tx0")


def rolling_back_twice(s: Script) -> None:
    s.create("t")
    one = s.publish("t", "a", tx=1)
    s.publish("t", "after")
    s.poll("t")
    after = s.poll("t", limit=2)[1:]
    for _ in range(3):
        s.rollback("t", one, "tx1")
        s.poll("t")
        s.poll("t", snapshot=s.snapshot(9), said="as of tx9", right=after)


def rolling_back_missing_messages(s: Script) -> None:
    s.create("t")
    one = s.publish("t", "a", tx=1)
    assert one is not None
    s.next_millisecond()
    s.publish("t", "b", tx=2)
    s.poll("t")
    timestamp_ms, seq = unpack_log_key(one.rows.last)
    later, earlier = log_key(timestamp_ms + 1000, 0), log_key(timestamp_ms - 1000, 0)
    pointer = one.rows.pointer
    s.rollback("t", RollbackRange(pointer, later, later), "later")
    s.rollback("t", RollbackRange(pointer, earlier, earlier), "earlier")
    s.rollback("t", RollbackRange(pointer, later, earlier), "backwards")
    after = log_key(timestamp_ms, seq + 1)
    s.rollback("t", RollbackRange(pointer, after, after), "just after")
    s.poll("t")
    s.poll("t", snapshot=s.snapshot(9), said="as of tx9")
    s.rollback("t", RollbackRange(pointer, earlier, one.rows.last), "tx1, from earlier on")
    s.poll("t", snapshot=s.snapshot(9), said="as of tx9")


def rolling_back_by_place(s: Script) -> None:
    """A range that also has rows of another transaction, and rows without a transaction."""
    s.create("t")
    one = s.publish("t", "a", tx=1)
    s.publish("t", "plain")
    two = s.publish("t", "b", tx=2)
    assert one is not None
    assert two is not None
    everything = s.poll("t")
    wide = RollbackRange(one.rows.pointer, one.rows.first, two.rows.last)
    s.rollback("t", wide, "tx1, over tx2")
    s.poll("t", snapshot=s.snapshot(9), said="as of tx9", right=everything[1:])
    s.poll("t")


def two_topics(s: Script) -> None:
    s.create("t")
    s.create("t-2")
    s.create("tt")
    for number in range(3):
        s.publish("t", f"t{number}")
        s.publish("t-2", f"other {number}")
        s.publish("tt", f"tt{number}", tx=number)
    for topic in ("t", "t-2", "tt"):
        s.poll(topic)
    s.delete("t")
    s.poll("t-2")
    s.poll("tt")


SCENARIOS = (
    messages_in_order,
    array_forms,
    many_messages_in_one_request,
    large_messages,
    transactional_messages,
    ages_of_transactions,
    old_transactions_store,
    stored_messages,
    inline_beside_stored,
    storing_after_the_reference,
    the_same_reference_twice,
    rolling_back,
    rolling_back_twice,
    rolling_back_missing_messages,
    rolling_back_by_place,
    two_topics,
)
