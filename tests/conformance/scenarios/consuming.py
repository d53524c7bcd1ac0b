"""Polls: starts of every kind, limits, and the visibility for transactions."""

from broker.model import Snapshot, log_key_before, timestamp_of
from tests.conformance.script import Script


def starts_by_id(s: Script) -> None:
    s.create("t")
    for text in "abcde":
        s.publish("t", text)
        s.next_millisecond()
    found = s.poll("t")
    for number, message in enumerate(found):
        for inclusive in (True, False):
            right = found[number + (not inclusive) :]
            said = f"from {message.payload.decode()}"
            s.poll("t", message.id, inclusive=inclusive, said=said, right=right)
    row, payload = found[2].id[:10], found[2].id[10:]
    s.poll("t", log_key_before(row) + payload, said="from just before c", right=found[2:])
    s.poll("t", bytes(20), said="from zeros", right=found)
    s.poll("t", bytes(20), inclusive=False, said="from zeros", right=found)
    s.poll("t", b"\x7f" + b"\xff" * 19, said="from the far end", right=[])
    s.poll("t", found[-1].id, inclusive=False, said="after the last", right=[])
    s.poll("t", found[1].id + b"tail", said="from b with a tail", right=found[1:])


def starts_by_time(s: Script) -> None:
    s.create("t")
    for text in "abc":
        s.publish("t", text, text * 2)
        s.next_millisecond()
    found = s.poll("t")
    for number in (0, 2, 4):
        text, time_ms = found[number].payload.decode(), timestamp_of(found[number].id)
        for shift in (-1, 0, 1):
            for inclusive in (True, False):
                right = found[number + (2 if shift > 0 else 0) :]
                said = f"from the time of {text} {shift:+}"
                s.poll("t", time_ms + shift, inclusive=inclusive, said=said, right=right)
    for time_ms in (0, 1, 1_000_000_000_000, 4_000_000_000_000, (1 << 63) - 1):
        s.poll("t", time_ms, said=f"from time {time_ms}")
    s.poll("t", -1, said="from time -1")
    s.poll("t", -(1 << 63), said="from the least time")


def limits(s: Script) -> None:
    s.create("t")
    s.publish("t", *"abcdefg")
    found = s.poll("t")
    for limit in (1, 2, 6, 7, 8, 1000, (1 << 31) - 1):
        s.poll("t", limit=limit, right=found[:limit])
        s.poll("t", found[2].id, limit=limit, said="from c", right=found[2 : 2 + limit])
    for limit in (0, -1, -(1 << 31)):
        s.poll("t", limit=limit)


def visibility_for_a_snapshot(s: Script) -> None:
    s.create("t")
    s.publish("t", "plain")
    for number in (1, 2, 3, 4):
        s.publish("t", f"m{number}", tx=number)
    s.publish("t", "plain too")
    s.poll("t")
    for read in (0, 1, 2, 3, 4, 5):
        s.poll("t", snapshot=s.snapshot(read), said=f"up to tx{read}")
    for pointers in ((1,), (2,), (4,), (1, 3), (1, 2, 3, 4)):
        shown = " ".join(f"tx{number}" for number in pointers)
        snapshot = s.snapshot(4, invalid=pointers)
        s.poll("t", snapshot=snapshot, said=f"invalid {shown}")
        snapshot = s.snapshot(4, in_progress=pointers)
        s.poll("t", snapshot=snapshot, said=f"in progress {shown}")
        snapshot = s.snapshot(0, invalid=pointers)
        s.poll("t", snapshot=snapshot, said=f"up to tx0, invalid {shown}")
    both = s.snapshot(4, invalid=(1,), in_progress=(3,))
    s.poll("t", snapshot=both, said="invalid tx1, in progress tx3")
    s.poll("t", snapshot=both, limit=2, said="invalid tx1, in progress tx3")


def ones_own_writes(s: Script) -> None:
    s.create("t")
    for number in (1, 5, 6):
        s.publish("t", f"m{number}", tx=number)
    s.store("t", "stored", tx=7)
    s.publish("t", tx=7)
    s.poll("t")
    for visibility in Snapshot.Visibility:
        for own in (5, 6, 7):
            snapshot = s.snapshot(1, own=own, visibility=visibility)
            s.poll("t", snapshot=snapshot, said=f"as tx{own}, {visibility.name}")
    checkpoint = Snapshot(
        transaction_id=s.tx(5),
        read_pointer=s.tx(1),
        write_pointer=s.tx(7),
        checkpoint_pointers=[s.tx(6), s.tx(7)],
    )
    s.poll("t", snapshot=checkpoint, said="as tx5 at its checkpoint tx7")


def holding_back(s: Script) -> None:
    """A transaction in progress hides all messages behind it, wherever a poll begins."""
    s.create("t")
    s.publish("t", "a", tx=1)
    s.publish("t", "open", tx=2)
    s.publish("t", "b", tx=1)
    s.publish("t", "plain")
    found = s.poll("t")
    snapshot = s.snapshot(3, in_progress=(2,))
    for number, message in enumerate(found):
        for inclusive in (True, False):
            said = f"from {message.payload.decode()}, tx2 in progress"
            right = found[number + (not inclusive) :]
            if number + (not inclusive) <= 1:
                right = found[number + (not inclusive) : 1]
            s.poll("t", message.id, inclusive=inclusive, snapshot=snapshot, said=said, right=right)
    s.poll("t", snapshot=s.snapshot(3), said="after its commit", right=found)
    skipped = [m for m in found if m.payload != b"open"]
    s.poll("t", snapshot=s.snapshot(3, invalid=(2,)), said="after its end", right=skipped)


def skipped_rows_cost_no_limit(s: Script) -> None:
    s.create("t")
    for number in range(1, 7):
        s.publish("t", f"m{number}", tx=number)
    found = s.poll("t")
    snapshot = s.snapshot(9, invalid=(1, 2, 4))
    right = [found[2], found[4], found[5]]
    for limit in (1, 2, 3, 4):
        s.poll("t", limit=limit, snapshot=snapshot, said="invalid 1 2 4", right=right[:limit])
    s.poll("t", found[1].id, inclusive=False, limit=1, snapshot=snapshot, right=right[:1])


def expiry(s: Script) -> None:
    s.create("t", {"ttl": "1"})
    s.publish("t", "old")
    s.store("t", "old stored", tx=1)
    s.publish("t", tx=1)
    old = s.poll("t")
    s.expired("t")
    s.poll("t", right=[])
    s.poll("t", 0, said="from time 0", right=[])
    s.update("t", {"ttl": "60"})
    s.publish("t", "new")
    s.poll("t", timestamp_of(old[-1].id) + 1, said="from a time after the old")


def the_longest_ttl(s: Script) -> None:
    s.create("t", {"ttl": "2147483647"})
    s.publish("t", "a", "b")
    s.publish("t", "c", tx=1)
    found = s.poll("t", 0, said="from time 0")
    s.poll("t")
    s.poll("t", limit=1)
    s.poll("t", 1_000_000_000_000, said="from 2001", right=found)
    s.poll("t", snapshot=s.snapshot(9), said="as of tx9")


SCENARIOS = (
    starts_by_id,
    starts_by_time,
    limits,
    visibility_for_a_snapshot,
    ones_own_writes,
    holding_back,
    skipped_rows_cost_no_limit,
    expiry,
    the_longest_ttl,
)
