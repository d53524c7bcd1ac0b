"""What aiohttp takes for the socket of a connection; the other side of our protocol in front of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from broker.http.inbound import Connection


class Side(asyncio.Transport):
    """What aiohttp takes for the socket."""

    __slots__ = ("_real", "connection")

    def __init__(self, connection: Connection) -> None:
        """Stand before the transport of a connection."""
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
