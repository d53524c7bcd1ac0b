"""Read or create the secret by which nodes of one cluster know each other: a record that the first node writes.

The secret keeps clients from pretending to be nodes. A program that can read the record store can read the secret,
but it can read all messages too, so it gains nothing by pretending.
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
    """Return the cluster's secret, and create it if there is none. All nodes get the same.

    Raises:
        Unavailable: the record store does not answer.
        StorageCorrupt: the record has no valid secret.
    """
    for _ in range(TRIES_MAX):
        found = await records.get(KEY)
        if found is not None:
            if not _FORM.fullmatch(found.value):
                raise StorageCorrupt(f"The record {KEY.decode()} has no valid secret.")
            return found.value.decode("ascii")
        try:
            await records.put_if(KEY, None, secrets.token_hex(SECRET_BYTES).encode("ascii"))
        except OutcomeUnknown:
            await clock.sleep(PAUSE_S)
        # Another node may have been first, so read the stored secret.
    raise Unavailable("The cluster's secret can't be written.")
