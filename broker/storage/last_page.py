"""The last page of a log: as it was read, and its head under the next writer (rule 3)."""

from __future__ import annotations

from typing import NamedTuple

from broker.errors import Fenced
from broker.model import LogKey, log_key_before
from broker.storage import head as heads
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId
from broker.storage.resolve import Tokens
from broker.storage.root import Root
from broker.storage.table import Cell


class Tail(NamedTuple):
    """The last page of a log. If ``value`` is None the page is not made yet, and comes after ``before``."""

    page: LogKey
    value: Cell | None
    head: Head | None
    before: tuple[LogKey, Head] | None

    @property
    def is_closed(self) -> bool:
        """True if the log ends here."""
        return self.head is not None and self.head.state is PageState.CLOSED


class TailReading(NamedTuple):
    """A topic's root, its bytes, and its tail, as they were read: a claim begins from them.

    ``tail`` None: there is no root, or the topic is deleted.
    """

    root: Root | None
    value: bytes | None
    tail: Tail | None

    @property
    def writer(self) -> Head | None:
        """The head of the tail, which names the writer; None: there is no tail, or it is not made yet."""
        return None if self.tail is None else self.tail.head


def next_head(
    log: LogId, root: Root | None, tail: Tail, owner: str, tokens: Tokens, epoch: int | None
) -> Head:
    """Return the head of a tail under its next writer, for a page that is taken (3b) or made (3c).

    Raises:
        Fenced: a payload log has a higher epoch than the topic's leader.
    """
    former_head = tail.head or (tail.before[1] if tail.before is not None else None)
    if epoch is None:
        former = (
            former_head.epoch
            if former_head is not None
            else (root.epoch if root is not None else 0)
        )
        epoch = former + 1
    elif former_head is not None and former_head.epoch > epoch:
        raise Fenced(f"Another node leads topic '{log.topic}'.")
    token = tokens.fresh()
    if tail.head is not None:
        return heads.taken(tail.head, epoch, owner, token)
    if tail.before is not None:
        page, before = tail.before
        return heads.following(before, page, epoch, owner, token)
    return heads.first_page(log_key_before(tail.page), epoch, owner, token)
