"""The secret by which nodes of one cluster know each other: a record, made by the first node.

It keeps clients from pretending to be nodes. Whoever can read the record store can read it, and who can
do that needs no pretence.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from broker.clock import Clock
from broker.errors import OutcomeUnknown, StorageCorrupt, Unavailable
from broker.storage.records import RecordStore

KEY: Final = b"cluster/secret"
SECRET_BYTES: Final = 32
TRIES_MAX: Final = 10
PAUSE_S: Final = 0.1
_FORM = re.compile(rb"[0-9a-f]{%d}" % (2 * SECRET_BYTES))


async def cluster_secret(records: RecordStore, clock: Clock) -> str:
    """Return the cluster's secret, making it if there is none. All nodes get the same.

    Raises:
        Unavailable: the record store does not answer.
        StorageCorrupt: the record is none.
    """
    for _ in range(TRIES_MAX):
        found = await records.get(KEY)
        if found is not None:
            if not _FORM.fullmatch(found.value):
                raise StorageCorrupt(f"The record {KEY.decode()} is no secret.")
            return found.value.decode("ascii")
        try:
            await records.put_if(KEY, None, secrets.token_hex(SECRET_BYTES).encode("ascii"))
        except OutcomeUnknown:
            await clock.sleep(PAUSE_S)
        # Whoever came first: what counts is what is there now.
    raise Unavailable("The cluster's secret can't be written.")
