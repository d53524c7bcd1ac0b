"""A proxy before a gateway of HBase that loses requests of one kind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

HOST = "127.0.0.1"


@asynccontextmanager
async def stalling(port: int, is_stalled: Callable[[bytes], bool]) -> AsyncIterator[int]:
    """Run a proxy that loses requests of one kind, and all later requests on their connection."""
    ends: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(HOST, port)
        ends.extend((forth, writer))
        with suppress(OSError):
            await asyncio.gather(
                copy(reader, forth, is_stalled), copy(back, writer, lambda _: False)
            )
        for end in (forth, writer):
            end.close()

    async def copy(
        source: asyncio.StreamReader, target: asyncio.StreamWriter, stops: Callable[[bytes], bool]
    ) -> None:
        while (data := await source.read(1 << 16)) and not stops(data):
            target.write(data)
        await source.read()
        target.close()

    server = await asyncio.start_server(talk, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for end in ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)
