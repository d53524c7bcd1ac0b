"""Pages from every message on, with several limits, over rows of all kinds.

The right answer is known in advance: the messages above the id, in order, up to the limit.
"""

from broker.model import LOG_KEY_BYTES, Message, log_key_after
from tests.conformance.script import Script

WIDTHS = (1, 2, 3, 7)


def _every_page(s: Script, found: list[Message]) -> None:
    for number, message in enumerate(found):
        said = f"from {message.payload.decode()}"
        for width in WIDTHS:
            for inclusive in (True, False):
                begin = number + (not inclusive)
                s.poll(
                    "t",
                    message.id,
                    inclusive=inclusive,
                    limit=width,
                    said=said,
                    right=found[begin : begin + width],
                )
    for width in WIDTHS:
        s.poll("t", limit=width, said="from the oldest", right=found[:width])


def pages_of_inline_rows(s: Script) -> None:
    s.create("t")
    s.publish("t", "a", "b")
    s.publish("t", "c", tx=1)
    s.publish("t", "d", "e", "f", tx=2)
    s.publish("t", "g")
    _every_page(s, s.poll("t"))


def pages_of_a_mix(s: Script) -> None:
    """Plain rows, rows of transactions, and stored messages."""
    s.create("t")
    s.store("t", "p0", "p1", tx=1)
    s.publish("t", "m0")
    s.store("t", "p2", "p3", "p4", tx=1)
    s.store("t", "q0", tx=2)
    s.publish("t", tx=1)
    s.publish("t", "m9", tx=3)
    s.publish("t", tx=2)
    s.publish("t", "m10")
    _every_page(s, s.poll("t"))


def pages_over_an_empty_reference(s: Script) -> None:
    s.create("t")
    s.publish("t", "m0")
    s.publish("t", tx=1)
    s.publish("t", tx=2)
    s.store("t", "p0", tx=3)
    s.publish("t", tx=3)
    s.publish("t", "m1")
    _every_page(s, s.poll("t"))


def pages_within_one_transaction(s: Script) -> None:
    s.create("t")
    s.store("t", "p0", "p1", "p2", "p3", tx=1)
    s.publish("t", tx=1)
    _every_page(s, s.poll("t"))


def from_a_payload_that_is_not_there(s: Script) -> None:
    """An id between two payloads of a transaction, like the id of a removed payload."""
    s.create("t")
    s.store("t", "p0", tx=1)
    s.next_millisecond()
    s.store("t", "p1", tx=1)
    s.publish("t", tx=1)
    s.publish("t", "m")
    found = s.poll("t")
    row, payload = found[0].id[:LOG_KEY_BYTES], found[0].id[LOG_KEY_BYTES:]
    gone = row + log_key_after(log_key_after(payload))
    for inclusive in (True, False):
        for limit in (1, 2, 3):
            right = found[1 : 1 + limit]
            said = "from a gone payload"
            s.poll("t", gone, inclusive=inclusive, limit=limit, said=said, right=right)


def from_a_payload_that_expired(s: Script) -> None:
    """An expired id within a transaction, before a later transaction whose payloads were stored earlier."""
    s.create("t", {"ttl": "1"})
    s.store("t", "b0", tx=2)
    s.next_millisecond()
    s.store("t", "a0", "a1", tx=1)
    s.publish("t", tx=1)
    expired = s.poll("t")[0]
    s.expired("t")
    s.publish("t", tx=2)
    found = s.poll("t")
    for inclusive in (True, False):
        said = "from an expired payload"
        s.poll("t", expired.id, inclusive=inclusive, said=said, right=found)


SCENARIOS = (
    pages_of_inline_rows,
    pages_of_a_mix,
    pages_over_an_empty_reference,
    pages_within_one_transaction,
    from_a_payload_that_is_not_there,
    from_a_payload_that_expired,
)
