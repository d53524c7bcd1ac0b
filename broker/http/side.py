"""The transport that our protocol gives to aiohttp's: aiohttp uses it like the socket of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from broker.http.inbound import Connection


class Side(asyncio.Transport):
    """The transport of aiohttp's protocol. Its writes and its end go to the connection, not to the socket."""

    __slots__ = ("_real", "connection")

    def __init__(self, connection: Connection) -> None:
        """Keep the connection and its real transport."""
        super().__init__()
        assert connection.transport is not None, "connected"
        self._real = connection.transport
        self.connection = connection

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)

    @override
    def is_closing(self) -> bool:
        return self._real.is_closing()

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.connection.inner_said(bytes(data))

    @override
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.connection.inner_said(b"".join(list_of_data))

    @override
    def close(self) -> None:
        self.connection.inner_closed()

    @override
    def abort(self) -> None:
        self.connection.inner_closed()
