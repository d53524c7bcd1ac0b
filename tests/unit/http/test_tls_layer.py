"""The layer of TLS above sockets: flow control, the end of each direction, and what an attacker may cut."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from typing_extensions import override

from broker.http.tls_layer import TlsLayer
from tests.kit import certificates
from tests.kit.bench import settle
from tests.kit.certificates import TlsObject
from tests.kit.serving import eventually


class Told(asyncio.Protocol):
    """A protocol that notes its calls."""

    def __init__(self, *, stays: bool = False) -> None:
        self.calls: list[str] = []
        self.got = b""
        self.error: Exception | None = None
        self.transport: asyncio.Transport
        self._stays = stays

    @override
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.calls.append("made")

    @override
    def data_received(self, data: bytes) -> None:
        self.got += data

    @override
    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self._stays

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.calls.append("lost")

    @override
    def pause_writing(self) -> None:
        self.calls.append("pause")

    @override
    def resume_writing(self) -> None:
        self.calls.append("resume")


async def until(condition: Callable[[], object], *told: Told) -> None:
    await eventually(condition, lambda: [(each.calls, each.error) for each in told])


@asynccontextmanager
async def listening(tmp_path: Path, told: Told, **options: Any) -> Any:
    """Yield the port of a listener whose connection is served by ``told``."""
    context = certificates.serving(certificates.write(tmp_path))
    server = await asyncio.get_running_loop().create_server(
        lambda: TlsLayer(told, context, **options), "127.0.0.1", 0
    )
    yield server.sockets[0].getsockname()[1]
    server.close()


async def connected(port: int, buffer: int = 4096) -> tuple[socket.socket, TlsObject]:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    tls = TlsObject(certificates.trusting())
    await tls.shake_hands(sock)
    return sock, tls


async def test_a_handshake_that_does_not_end_is_cut(tmp_path: Path) -> None:
    told = Told()
    async with listening(tmp_path, told, handshake_s=0.01) as port:
        with closing(socket.create_connection(("127.0.0.1", port))):
            await until(lambda: "lost" in told.calls, told)
    assert isinstance(told.error, TimeoutError)
    assert told.calls == ["made", "lost"], "it counts from its first packet on"


async def test_a_large_write_to_a_slow_reader_is_known_to_be_unsent(tmp_path: Path) -> None:
    told, size = Told(), 20_000_000
    async with listening(tmp_path, told) as port:
        sock, tls = await connected(port)
        with closing(sock):
            await until(lambda: told.calls, told)
            told.transport.set_write_buffer_limits(65_536)
            told.transport.write(bytes(size))
            assert told.calls == ["made", "pause"]
            assert told.transport.get_write_buffer_size() > size // 2
            told.transport.close()
            got, loop = 0, asyncio.get_running_loop()
            while piece := await loop.sock_recv(sock, 1 << 20):
                got += len(tls.decrypted(piece))
            assert got == size, "a close sends all that was written"


async def test_each_direction_ends_by_itself(tmp_path: Path) -> None:
    told = Told(stays=True)
    async with listening(tmp_path, told) as port:
        sock, tls = await connected(port)
        loop = asyncio.get_running_loop()
        with closing(sock):
            await loop.sock_sendall(sock, tls.encrypted(b"asked") + tls.ended())
            await until(lambda: "eof" in told.calls, told)
            assert told.got == b"asked"
            told.transport.write(b"answer")
            told.transport.write_eof()
            got = b""
            while piece := await loop.sock_recv(sock, 1 << 16):
                got += piece
            assert got
            assert "lost" not in told.calls
        await until(lambda: "lost" in told.calls, told)
    assert told.error is None


async def test_paused_bytes_wait_and_then_come(tmp_path: Path) -> None:
    told = Told()
    async with listening(tmp_path, told) as port:
        sock, tls = await connected(port)
        with closing(sock):
            await until(lambda: told.calls, told)
            told.transport.pause_reading()
            await asyncio.get_running_loop().sock_sendall(sock, tls.encrypted(b"x" * 100_000))
            await settle()
            assert told.got == b""
            told.transport.resume_reading()
            await until(lambda: len(told.got) == 100_000, told)


async def test_an_answer_that_was_cut_off_did_not_end(tmp_path: Path) -> None:
    """Without a Content-Length the end of the connection ends an answer. Anyone on the way can end TCP."""
    context = certificates.serving(certificates.write(tmp_path))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        await writer.drain()
        writer.get_extra_info("socket").shutdown(socket.SHUT_WR)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    told = Told()
    layer = TlsLayer(told, certificates.trusting(), server_hostname="127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    await asyncio.get_running_loop().create_connection(lambda: layer, "127.0.0.1", port)
    await layer.opened
    await until(lambda: "lost" in told.calls, told)
    assert told.got == b"half"
    assert "eof" not in told.calls
    assert isinstance(told.error, ConnectionAbortedError)
    server.close()


async def test_bytes_that_are_no_tls_end_the_connection(tmp_path: Path) -> None:
    told = Told()
    async with listening(tmp_path, told) as port:
        sock, _ = await connected(port)
        with closing(sock):
            await asyncio.get_running_loop().sock_sendall(sock, b"\x17\x03\x03\x00\x20" + bytes(32))
            await until(lambda: "lost" in told.calls, told)
    assert isinstance(told.error, ssl.SSLError)
    assert told.got == b""


def test_old_versions_are_refused(tmp_path: Path) -> None:
    for context in (certificates.serving(certificates.write(tmp_path)), certificates.trusting()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
