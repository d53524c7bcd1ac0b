"""A broker withstands frames that Tephra's client never sends: large frames, frames with very many parts, and garbage."""

import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from broker.local.servers.process import free_ports
from tests.integration.attacks import sent
from tests.kit.attacked import Attacked, attacked, push
from tests.kit.serving import RawHttp

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

LINES_MAX = 1_000
"""Each refused connection logs a line, up to 20 lines in a second."""


@pytest.fixture(scope="module")
def thrift_port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, thrift_port: int) -> Iterator[Attacked]:
    flags = ("--thrift-port", str(thrift_port))
    with attacked(tmp_path_factory.mktemp("attacked") / "data", flags) as running:
        yield running


def call(arguments: bytes) -> bytes:
    name = b"canCommitOrThrow"
    message = b"\x80\x01\x00\x01" + struct.pack(">i", len(name)) + name + bytes(4) + arguments
    return struct.pack(">i", len(message)) + message


FILLING = 16 * sent.MIB - 100
KEYS = b"\x0e\x00\x02\x0b"
FRAMES = (
    # As many keys as a frame can hold, and a set that says so.
    call(KEYS + struct.pack(">i", FILLING // 4) + bytes(FILLING)),
    call(KEYS + struct.pack(">i", 100_000) + bytes(FILLING)),
    # One key.
    call(KEYS + struct.pack(">ii", 1, FILLING - 10) + bytes(FILLING - 10) + b"\0"),
    # Lists of empty structs, of booleans; structs in structs; fields that come again.
    call(b"\x0f\x00\x09\x0c" + struct.pack(">i", FILLING - 20) + bytes(FILLING - 10)),
    call(b"\x0f\x00\x09\x02" + struct.pack(">i", FILLING - 20) + bytes(FILLING - 10)),
    call(b"\x0c\x00\x09" * (sent.MIB)),
    call(b"\x0a\x00\x01\0\0\0\0\0\0\0\0" * (sent.MIB)),
    # Bytes that are no frame.
    struct.pack(">i", 16 * sent.MIB) + bytes(16 * sent.MIB),
    struct.pack(">i", 2**31 - 1) + bytes(sent.MIB),
)


async def test_hostile_frames(broker: Attacked, thrift_port: int) -> None:
    async def attack() -> None:
        async with AsyncExitStack() as stack:
            for data in FRAMES:
                raw = await stack.enter_async_context(RawHttp(thrift_port))
                await push(raw, data)
            # Frames that never end are held, and counted.
            for _ in range(4):
                raw = await stack.enter_async_context(RawHttp(thrift_port))
                await push(raw, FRAMES[0][:-1])

    await broker.withstands(attack, peak_bytes_max=512 * sent.MIB, log_lines_max=LINES_MAX)
