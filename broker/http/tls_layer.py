"""TLS between a socket and the protocol that uses it.

asyncio's own TLS can't end one direction of a connection, and hides the bytes that it holds for a slow reader: a whole
reply, which the bound on slow readers would never see, and which its time limit for closing would cut off. So the
layer here does both, over the same OpenSSL (``ssl.MemoryBIO``). To the protocol above, its transport is what a
transport of TCP is::

    write           keeps plain bytes, and encrypts only as many as the socket takes
    write_eof       sends TLS's end (close_notify), then TCP's; bytes that still arrive are dropped
    close           the same once all is sent, then closes the socket
    abort           cuts the connection
    pause_reading   stops the socket; what was read already waits here, at most one read of the socket

The protocol above is connected as soon as the socket is, so that it counts a connection that never ends its handshake.
What it writes meanwhile is sent after the handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from typing import Any, Final, cast

from typing_extensions import override

HANDSHAKE_S: Final = 10.0
READ_BYTES: Final = 16 * 1024
"""The size of the largest record of TLS."""
READ_PIECES: Final = 8
"""The most records that are passed on at once."""
WRITE_BYTES: Final = 64 * 1024
"""The most plain bytes that are encrypted at once."""
ALERT_S: Final = 1.0
"""How long the socket may take to send an alert."""


class TlsRefused(ssl.SSLError):
    """The other side ended the connection with an alert of TLS, such as ``certificate required``."""


class TlsLayer(asyncio.Protocol):
    """The protocol of a socket with TLS. ``opened`` is done when the handshake is, or failed."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """Put TLS below ``protocol``. With ``server_hostname`` this is the client's side, and the server must have it."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._app: asyncio.Protocol = protocol
        self._is_server = server_hostname is None
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self.context = context
        self.tls = context.wrap_bio(
            self._arrived, self._leaving, self._is_server, server_hostname=server_hostname
        )
        self.opened: asyncio.Future[None] = loop.create_future()
        self.is_open = False
        self._handshake_s = handshake_s
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._transport: TlsTransport
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._most_pending = WRITE_BYTES
        self._is_full = False
        """True if the socket takes no bytes for now."""
        self._told_full = False
        """True if the protocol above knows that it should not write."""
        self.reads = True
        """True if bytes that arrive are passed on."""
        self._has_ended = False
        """True if the other side has sent its end, and the protocol above knows it."""
        self._ends = False
        """True if this side's end is sent, or will be after the pending bytes."""
        self._sent_end = False
        self._closes = False

    # --- Called by the loop -------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket = cast("asyncio.Transport", transport)
        self._transport = TlsTransport(self)
        self._timer = self._loop.call_later(self._handshake_s, self._is_late)
        self._app.connection_made(self._transport)
        if not self._is_server:
            self._advance()

    def _is_late(self) -> None:
        self._fail(TimeoutError(f"no TLS handshake in {self._handshake_s:g} s"))

    @override
    def data_received(self, data: bytes) -> None:
        if self._error is not None or (self.is_open and (self._closes or self._ends)):
            return
        self._arrived.write(data)
        self._advance()

    @override
    def eof_received(self) -> bool:
        if self._ends:
            self.close()  # Once all is sent.
        if self._closes or self._has_ended:
            return True
        if not self.is_open:
            self._fail(ConnectionResetError("the connection ended in the TLS handshake"))
        elif not self._is_server:
            # An attacker may have cut the answer off: TCP's end is not signed, TLS's is.
            self._fail(ConnectionAbortedError("the connection was cut: TLS did not end"))
        else:
            self._end_arrived()
        return True  # The layer closes the socket by itself.

    def _end_arrived(self) -> None:
        """Tell the protocol above that no more bytes come."""
        if self._closes or self._has_ended:
            return
        self._has_ended = True
        if not self._app.eof_received():
            self.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        error = self._error or exc
        if not self.opened.done():
            self.opened.set_exception(error or ConnectionResetError("the connection was cut"))
            self.opened.exception()  # A listener's is read by no one.
        self._closes = True
        self._drop_pending()
        app, self._app = self._app, asyncio.Protocol()
        del self._transport  # It leads back here: garbage that only a full collection would free.
        app.connection_lost(error)

    @override
    def pause_writing(self) -> None:
        self._is_full = True
        self._tell_full()

    @override
    def resume_writing(self) -> None:
        self._is_full = False
        self._send()

    # --- The handshake, and bytes that arrive -------------------------------------------------------

    def _advance(self) -> None:
        if self.is_open or self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        """Go on with the handshake. Return whether it is done."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # The alert, which tells the other side why.
            self._fail(error)
            return False
        self.is_open = True
        self._stop_timer()
        self._flush()
        if not self.opened.done():
            self.opened.set_result(None)
        self._send()
        return True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        """Pass on what can be decrypted."""
        has_more = True
        while has_more and self.reads and not (self._closes or self._ends or self._has_ended):
            pieces: list[bytes] = []
            try:
                while len(pieces) < READ_PIECES and (piece := self.tls.read(READ_BYTES)):
                    pieces.append(piece)
                ended = len(pieces) < READ_PIECES
            except ssl.SSLWantReadError:
                ended = False
            except ssl.SSLError as error:
                self._flush()
                self._fail(TlsRefused(*error.args) if _is_alert(error) else error)
                return
            has_more = len(pieces) == READ_PIECES
            self._flush()  # An update of keys is answered.
            if pieces:
                self._app.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if ended:
                self._end_arrived()

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error. The alert that is written is sent, if the socket takes it."""
        if self._error is None:
            self._error = error
        self._closes = True
        self._stop_timer()
        self._drop_pending()
        self.socket.close()
        self._timer = self._loop.call_later(ALERT_S, self.socket.abort)

    # --- Bytes that leave ---------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send plain bytes."""
        if self._ends or self._closes or not data:
            return
        self._pending.append(data if isinstance(data, bytes) else bytes(data))
        self._pending_bytes += len(data)
        self._send()

    def _send(self) -> None:
        """Encrypt and send what the socket takes, then what has to follow it."""
        if self.is_open and not self._sent_end:
            try:
                while self._pending and not self._is_full:
                    self._encrypt(self._pending.popleft())
            except ssl.SSLError as error:
                self._fail(error)
                return
            if not self._pending and (self._ends or self._closes):
                self._send_end()
        self._tell_full()

    def _encrypt(self, data: bytes) -> None:
        """Encrypt one piece as far as the socket takes it, and keep the rest."""
        sent, view = 0, memoryview(data)
        while sent < len(data) and not self._is_full:
            sent += self.tls.write(view[sent : sent + WRITE_BYTES])
            self._flush()
        self._pending_bytes -= sent
        if sent < len(data):
            self._pending.appendleft(data[sent:])

    def _flush(self) -> None:
        if self._leaving.pending and not self.socket.is_closing():
            self.socket.write(self._leaving.read())

    def _send_end(self) -> None:
        """Send TLS's end, and TCP's."""
        self._sent_end = True
        with suppress(
            ssl.SSLError
        ):  # It waits for the other side's end, or has bytes that came before that.
            self.tls.unwrap()
        self._flush()
        self._loop.call_soon(self._end_socket)  # asyncio's socket may be in the middle of a write.

    def _end_socket(self) -> None:
        if self._closes:
            self.socket.close()
        elif not self.socket.is_closing():
            with suppress(OSError):  # The other side has cut it.
                self.socket.write_eof()

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0

    def _tell_full(self) -> None:
        """Let the protocol above know whether it should write."""
        is_full = self._is_full or self._pending_bytes > self._most_pending
        if is_full != self._told_full:
            self._told_full = is_full
            if is_full:
                self._app.pause_writing()
            else:
                self._app.resume_writing()

    # --- Called by the protocol above, through its transport ----------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not taken."""
        return self._pending_bytes + self.socket.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        """True if nothing more can be written."""
        return self._closes or self.socket.is_closing()

    def bound(self, high: int | None, low: int | None) -> None:
        """Set how many unsent bytes pause the protocol above."""
        self.socket.set_write_buffer_limits(high, low)
        self._most_pending = WRITE_BYTES if high is None else high

    def pause(self) -> None:
        """Pass on no bytes for now."""
        self.reads = False
        self.socket.pause_reading()

    def resume(self) -> None:
        """Pass bytes on again, also those that wait here."""
        self.reads = True
        self.socket.resume_reading()
        if self.is_open:
            self._loop.call_soon(self._read)

    def end(self) -> None:
        """Send the end after all pending bytes."""
        if not self._ends and not self._closes:
            self._ends = True
            self._send()

    def close(self) -> None:
        """Send all pending bytes and the end, then close the socket."""
        if self._closes:
            return
        self._closes = True
        if self._sent_end or not (self.is_open or self._pending):
            self.socket.close()
        else:
            self._send()

    def abort(self) -> None:
        """Cut the connection."""
        self._closes = True
        self._drop_pending()
        self.socket.abort()

    def use(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass everything to another protocol from now on."""
        self._app = cast("asyncio.Protocol", protocol)

    @property
    def protocol(self) -> asyncio.Protocol:
        """The protocol above."""
        return self._app


class TlsTransport(asyncio.Transport):
    """The transport for the protocol above a ``TlsLayer``."""

    def __init__(self, layer: TlsLayer) -> None:
        """Make the transport of a layer."""
        super().__init__()
        self._layer = layer
        self.write = layer.write  # type: ignore[method-assign]
        self.pause_reading = layer.pause  # type: ignore[method-assign]
        self.resume_reading = layer.resume  # type: ignore[method-assign]
        self.write_eof = layer.end  # type: ignore[method-assign]
        self.close = layer.close  # type: ignore[method-assign]
        self.abort = layer.abort  # type: ignore[method-assign]

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        layer = self._layer
        if name == "ssl_object":
            return layer.tls
        if name == "sslcontext":
            return layer.context
        if name == "peercert":
            return layer.tls.getpeercert() if layer.is_open else default
        return layer.socket.get_extra_info(name, default)

    @override
    def get_write_buffer_size(self) -> int:
        return self._layer.unsent_bytes

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._layer.bound(high, low)

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def is_closing(self) -> bool:
        return self._layer.is_closing

    @override
    def is_reading(self) -> bool:
        return self._layer.reads and not self._layer.is_closing

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._layer.use(protocol)

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._layer.protocol


def _is_alert(error: ssl.SSLError) -> bool:
    return "ALERT" in (error.reason or "")
