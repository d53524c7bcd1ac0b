"""End the ZooKeeper session of another process, given only its id.

A client that presents a session's id and password owns the session. ZooKeeper derives the password from the
id: it is the first sixteen bytes that Java's ``Random`` draws with the seed id ^ 0xB3415C00. So any client of
ZooKeeper can take a session over and close it. For the owner, this looks like an expiry while the connection
is healthy.

::

    seed      s0 = (id ^ 0xB3415C00 ^ 0x5DEECE66D) mod 2^48
    next      s  = (s * 0x5DEECE66D + 0xB) mod 2^48; a draw is the bits 47..16 of s
    bytes     four from each draw, the lowest first
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

PASSWORD_BYTES: Final = 16
CONNECT_S: Final = 10.0
_SECRET: Final = 0xB3415C00
_MULTIPLIER: Final = 0x5DEECE66D
_MASK: Final = (1 << 48) - 1


class NotEnded(Exception):
    """The verifier could not take the session over; the session may have ended already."""


def password_of(session: int) -> bytes:
    """Return the password that ZooKeeper gives to a session."""
    state = (session ^ _SECRET ^ _MULTIPLIER) & _MASK
    drawn = b""
    while len(drawn) < PASSWORD_BYTES:
        state = (state * _MULTIPLIER + 0xB) & _MASK
        drawn += struct.pack("<I", state >> 16)
    return drawn


def end_session(hosts: Sequence[str], session: int) -> None:
    """End a session, as its owner would. It blocks. Raises NotEnded."""
    signed = struct.unpack(">q", struct.pack(">Q", session & (1 << 64) - 1))[0]
    client = KazooClient(",".join(hosts), client_id=(signed, password_of(session)))
    try:
        client.start(timeout=CONNECT_S)
        if client.client_id is None or client.client_id[0] != signed:
            raise NotEnded(f"ZooKeeper gave another session than {session:#x}")
        client.stop()
    except (KazooException, KazooTimeoutError) as error:
        raise NotEnded(f"session {session:#x}: {error!r}") from error
    finally:
        client.stop()
        client.close()
