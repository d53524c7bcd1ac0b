"""A client of the Thrift service that sends any bytes."""

import asyncio
import contextlib
import struct
from typing import Any

from tests.unit.tephra.test_tephra_service import result

DEADLINE_S = 10


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *messages: bytes) -> None:
        self.writer.write(b"".join(struct.pack(">i", len(each)) + each for each in messages))

    async def answer(self, method: str) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return result(await self.reader.readexactly(length), method)

    async def ended(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        self.writer.close()

    async def closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def connect(port: int, address: str = "127.0.0.1") -> Client:
    local = (address, 0)
    return Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=local))
