"""The callers of Tephra's Thrift service in the mode ``required``: SASL PLAIN with a token, or a client certificate.

::

    client   01 | length int32 | "PLAIN"                      02 or 05 | length int32 | user 00 user 00 token
    server                                                    05 | 0     or 04 | length int32 | reason, and the end

The frames of calls follow, as without SASL. A client that begins with a frame has a certificate, or no credentials.
The credentials are checked at each call, so a token that was revoked meanwhile ends them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from broker.errors import BrokerError, Unavailable
from broker.http.request import NO_NAMES, PathNames
from broker.operations.operation import Action
from broker.principal import CallerPending, Principal, Remote
from broker.transactions.tephra_frames import NoCall

START: Final = 1
OK: Final = 2
ERROR: Final = 4
COMPLETE: Final = 5
MESSAGE_BYTES_MAX: Final = 16 * 1024
_head: Final = struct.Struct(">BI")

_OWN: Final = (
    *("startLong", "startLongClientId", "startShort", "startShortClientId", "startShortTimeout"),
    *(
        "startShortWithTimeout",
        "startShortWithClientIdAndTimeOut",
        "canCommitTx",
        "canCommitOrThrow",
    ),
    *("commitTx", "commitOrThrow", "abortTx", "invalidateTx", "checkpoint"),
)
ACTIONS: Final[Mapping[str, Action]] = {
    **dict.fromkeys(_OWN, Action.TRANSACTIONS),
    "status": Action.HEALTH,
    "invalidTxSize": Action.TRANSACTIONS_ALL,
    "getSnapshot": Action.TRANSACTIONS_ALL,
    "resetState": Action.TRANSACTIONS_RESET,
    "truncateInvalidTx": Action.TRANSACTIONS_RESET,
    "truncateInvalidTxBefore": Action.TRANSACTIONS_RESET,
    "pruneNow": Action.TRANSACTIONS_RESET,
}
"""The action of each method. A method without one is refused."""


class CallGuard(Protocol):
    """Tells callers apart, and decides what they may do: the gate of the node."""

    @property
    def is_open(self) -> bool:
        """True if all callers may do everything."""

    def identify(self, headers: Mapping[str, str], remote: Remote) -> Principal:
        """Return the caller with these credentials. Raises BrokerError, CallerPending."""

    def authorize(self, principal: Principal, action: Action, names: PathNames) -> None:
        """Return if a caller may do an action. Raises BrokerError."""


class TephraCaller:
    """The caller at the other end of one connection."""

    def __init__(self, guard: CallGuard, remote: Callable[[], Remote]) -> None:
        """Ask ``guard`` for each call. ``remote()`` is the other end, once its handshake of TLS is done."""
        self._guard = guard
        self._remote = remote
        self._headers: Mapping[str, str] = {}
        self._begun = b""
        self._has_started = False
        self._is_done = False

    def take(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """Take bytes that have arrived. Return the answer, the bytes behind SASL, and whether the connection ends.

        Raises NoCall: the bytes are neither SASL nor a call.
        """
        if self._is_done:
            return b"", data, False
        data, self._begun = self._begun + data, b""
        if not self._has_started and data[:1] != bytes([START]):
            self._is_done = True
            return b"", data, False
        while len(data) >= _head.size:
            status, length = _head.unpack_from(data)
            if length > MESSAGE_BYTES_MAX:
                raise NoCall(f"a message of SASL has {length} bytes")
            end = _head.size + length
            if len(data) < end:
                break
            text, data = data[_head.size : end], data[end:]
            if not self._has_started:
                if text != b"PLAIN":
                    return _message(ERROR, "Only the mechanism PLAIN is supported."), b"", True
                self._has_started = True
            elif status in (OK, COMPLETE):
                self._is_done = True
                answer, is_over = self._known(text)
                return answer, data, is_over
            else:
                raise NoCall("its client ended SASL")
        self._begun = data
        return b"", b"", False

    def _known(self, text: bytes) -> tuple[bytes, bool]:
        """Keep the credentials of PLAIN. Return the answer, and whether the connection ends."""
        parts = text.split(b"\0")
        if len(parts) != 3:
            return _message(ERROR, "These are no credentials of PLAIN."), True
        self._headers = {"Authorization": f"Bearer {parts[2].decode('utf-8', 'replace')}"}
        try:
            self._guard.identify(self._headers, self._remote())
        except (CallerPending, Unavailable):
            pass  # Each call asks again.
        except BrokerError as error:
            return _message(ERROR, error.message), True
        return _message(COMPLETE, ""), False

    async def check(self, method: str) -> Principal:
        """Return the caller, if it may call a method. Raises BrokerError."""
        remote = self._remote()
        try:
            principal = self._guard.identify(self._headers, remote)
        except CallerPending as pending:
            await pending.fetched()
            try:
                principal = self._guard.identify(self._headers, remote)
            except CallerPending as error:
                raise Unavailable("The credentials can't be checked now.") from error
        self._guard.authorize(principal, ACTIONS.get(method, Action.ACCESS), NO_NAMES)
        return principal


def _message(status: int, text: str) -> bytes:
    told = text.encode()
    return _head.pack(status, len(told)) + told
