"""Gaps: messages of a topic that a repair of the store did not find again.

A stub with the lifetime LOST_MS takes their place in the log, so that readers pass them. A record of the topic lists the
gaps, so that the topic's range counts them as lost::

    lost/ns:topic:    {"generation": 1, "gaps": [[first id, last id, least number of messages], …]}

Only a repair writes the record, while no node has the store open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LogKey, TopicId
from broker.storage.keys import topic_prefix

LOST_MS: Final = -1
"""The lifetime of a stub that stands for lost messages. No message has it."""
_GAPS: Final = b"lost/"


class Gap(NamedTuple):
    """Lost messages, at least ``messages``. Their ids lie in ``[first, last]``."""

    first: LogKey
    last: LogKey
    messages: int


def gaps_key(topic: TopicId) -> bytes:
    """Return the key of the record of a topic's gaps."""
    return _GAPS + topic_prefix(topic)


def encode_gaps(generation: int, gaps: Iterable[Gap]) -> bytes:
    """Encode a record of gaps."""
    rows = [[gap.first.hex(), gap.last.hex(), gap.messages] for gap in sorted(set(gaps))]
    return json.dumps({"generation": generation, "gaps": rows}).encode()


def decode_gaps(value: bytes, generation: int) -> Sequence[Gap]:
    """Return the gaps of a generation. Raises StorageCorrupt."""
    try:
        record = json.loads(value)
        if record["generation"] != generation:
            return ()
        return [
            Gap(bytes.fromhex(first), bytes.fromhex(last), int(messages))
            for first, last, messages in record["gaps"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageCorrupt("the record of a topic's gaps does not decode") from error
