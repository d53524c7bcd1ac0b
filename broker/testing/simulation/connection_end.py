"""One end of a connection in memory: an asyncio transport whose bytes may be delayed, held or lost.

Written bytes travel in segments, in order, and each segment has its own delay. A cut between the machines loses no
segment: as in TCP, segments wait until the cut has healed, and are then sent again. A cut does lose a reset, as no
machine sends a reset again. So one side may be closed while the other does not know it (half open)::

    write ──▶ [delay] ──cut?──▶ wait until healed ──▶ sent again
                  │
                  ├─ the reader or its process is paused: wait at the other end; if too much waits, pause the writer
                  ├─ the other end is closed, or its process is dead: a reset comes back
                  └─ else: data_received, eof_received
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from broker.testing.simulation.sockets import Address, SimSocket

if TYPE_CHECKING:
    from broker.testing.simulation.network import Network

HIGH_WATER_BYTES: Final = 64 * 1024
KERNEL_BYTES: Final = 128 * 1024
"""The most bytes in flight that a closed end may leave to its kernel."""
ITERATIONS_BEFORE_RESET: Final = 3
"""A loop learns of a reset when it next polls its sockets, and not in the iteration in which bytes came."""
END: Final = b""
"""The segment that marks the end of the stream."""


class End(asyncio.Transport):
    """One end of a connection. ``peer`` is the other end."""

    peer: End

    def __init__(
        self, network: Network, own: Address, peer: Address, context: Context, seed: str
    ) -> None:
        """Make an end of the machine at ``own``; all callbacks run in ``context``."""
        super().__init__()
        self.own_address = own
        self.peer_address = peer
        self.context = context
        self.is_lost = False
        self.is_gone = False
        """True if its process is dead: the end neither receives nor sends, and its machine answers for it."""
        self._network = network
        self._loop = network.loop
        self._chance = random.Random(seed)
        self._socket = SimSocket(own, peer)
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._sent_end = False
        self._reading = False
        self._arriving: deque[tuple[float, bytes]] = deque()
        self._last_arrival = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight_bytes = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_full = False

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect ``protocol``, and begin to read one iteration of the loop later, as asyncio does."""
        self._protocol = protocol  # type: ignore[assignment]  # All protocols here are stream protocols.
        protocol.connection_made(self)
        self._loop.call_soon(self.resume_reading, context=self.context)

    # Calls from the protocol.

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return an address, or the simulated socket."""
        found = {
            "socket": self._socket,
            "sockname": self.own_address,
            "peername": self.peer_address,
        }
        return found.get(name, default)

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
        self._protocol = protocol  # type: ignore[assignment]  # As above.

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None, "not attached"
        return self._protocol

    @override
    def is_closing(self) -> bool:
        """Return whether this side was closed."""
        return self._closing

    @override
    def is_reading(self) -> bool:
        """Return whether it delivers arriving bytes to the protocol."""
        return self._reading

    @override
    def pause_reading(self) -> None:
        """Deliver no bytes until ``resume_reading``."""
        self._reading = False

    @override
    def resume_reading(self) -> None:
        """Deliver bytes again."""
        if not self._reading and not self._closing:
            self._reading = True
            self.look()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the numbers of bytes in flight at which the protocol must pause writing, and may resume."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    @override
    def get_write_buffer_size(self) -> int:
        """Return the number of bytes in flight."""
        return self._in_flight_bytes

    @override
    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the limits: low, high."""
        return self._low, self._high

    @override
    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._closing or self._sent_end or self.is_lost or not data:
            return
        self._in_flight_bytes += len(data)
        self.peer.send_here(bytes(data))
        if self._in_flight_bytes > self._high and not self._is_full:
            self._is_full = True
            assert self._protocol is not None, "an end that writes has a protocol"
            self._protocol.pause_writing()

    @override
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces of bytes together."""
        self.write(b"".join(list_of_data))

    @override
    def write_eof(self) -> None:
        """Send the end of the stream, and go on reading."""
        if not self._sent_end and not self.is_lost:
            self._sent_end = True
            self.peer.send_here(END)

    @override
    def close(self) -> None:
        """Send the end of the stream behind the written bytes; read no more."""
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if self._arriving and self._arriving[0][1] and self._arriving[0][0] <= self._loop.time():
            self.peer.reset_here()  # There are unread bytes: then a kernel sends a reset.
        else:
            self.write_eof()
        self._drained()

    @override
    def abort(self) -> None:
        """Reset the connection at once."""
        self._closing = True
        self._reading = False
        if not self.is_lost:
            self.peer.reset_here()
            self._loop.call_soon(self.lose, None, context=self.context)

    # Calls from the other end and the network.

    def send_here(self, segment: bytes) -> None:
        """Send a segment to this end."""
        when = self._loop.time() + self._network.delay_s(self.peer, self, self._chance)
        self._last_arrival = when = max(when, self._last_arrival)
        self._arriving.append((when, segment))
        if self._timer is None:
            self._timer = self._loop.call_at(when, self.look, context=self.context)

    def reset_here(self) -> None:
        """Send a reset to this end, behind all earlier segments."""
        when = self._loop.time() + self._network.delay_s(self.peer, self, self._chance)
        when = max(when, self._last_arrival)
        self._loop.call_at(when, self._reset, context=self.context)

    def look(self) -> None:
        """Deliver the bytes that have arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time() + 1e-9
        while self._arriving and self._arriving[0][0] <= now:
            if self._network.is_cut(self.peer, self):
                self._network.stall(self)
                return
            if self._closing or self.is_lost:
                self._refuse()
            elif self._reading:
                # Deliver the rest in the next iteration of the loop, so that tasks can run in between.
                self._take(self._arrived_until(now))
                break
            else:
                return
        if self._arriving and self._timer is None:
            when = self._arriving[0][0]
            self._timer = self._loop.call_at(when, self.look, context=self.context)

    def _arrived_until(self, now: float) -> bytes:
        """Return all bytes that have arrived, or the end of the stream."""
        segments = [self._arriving.popleft()[1]]
        while segments[-1] and self._arriving and self._arriving[0][0] <= now:
            if not self._arriving[0][1]:
                break
            segments.append(self._arriving.popleft()[1])
        return segments[0] if len(segments) == 1 else b"".join(segments)

    def _take(self, segment: bytes) -> None:
        assert self._protocol is not None, "an end that reads has a protocol"
        if segment:
            self.peer.arrived(len(segment))
            self._protocol.data_received(segment)
        elif not self._protocol.eof_received():
            self.close()

    def _refuse(self) -> None:
        """Drop a segment that this end will not read; answer bytes with a reset."""
        segment = self._arriving.popleft()[1]
        if segment:
            self.peer.arrived(len(segment))
            self.peer.reset_here()

    def arrived(self, size: int) -> None:
        """Count bytes that have arrived at the other end, and resume the writer if there is room."""
        self._in_flight_bytes -= size
        if self._is_full and self._in_flight_bytes <= self._low:
            self._is_full = False
            self._loop.call_soon(self._room, context=self.context)
        if self._closing:
            self._drained()

    def _room(self) -> None:
        if self._protocol is not None and not self.is_lost:
            self._protocol.resume_writing()

    def _drained(self) -> None:
        if self._in_flight_bytes <= KERNEL_BYTES and not self.is_lost:
            self._loop.call_soon(self.lose, None, context=self.context)

    def _reset(self, iterations: int = ITERATIONS_BEFORE_RESET) -> None:
        """Lose the connection by a reset, after tasks could handle the earlier bytes."""
        if self.is_lost or self._network.is_cut(self.peer, self):
            return
        if iterations:
            self._loop.call_soon(self._reset, iterations - 1, context=self.context)
        else:
            self.lose(ConnectionResetError("the connection was reset"))

    def lose(self, error: Exception | None) -> None:
        """End this side of the connection, and call the protocol's ``connection_lost``."""
        if self.is_lost:
            return
        self.is_lost = self._closing = True
        self._reading = False
        self._network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def go(self, *, silently: bool) -> None:
        """Close the end, as its process is dead. Its machine sends a reset, unless it is down, too (``silently``)."""
        if self.is_lost:
            return
        self.is_lost = self.is_gone = self._closing = True
        # From now on the machine answers, and no process.
        self.context = self._network.context
        self._network.forget(self)
        if not silently:
            self.peer.reset_here()
