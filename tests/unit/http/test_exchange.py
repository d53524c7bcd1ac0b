import asyncio

import pytest

from broker.access.gate import OpenGate
from broker.long_work import CALLER
from tests.kit.serving import Broker, Http, RawHttp, listening


@pytest.mark.parametrize(
    ("version", "connection", "told"),
    [
        ("1.1", "", None),
        ("1.1", "Connection: close\r\n", "close"),
        ("1.0", "", "close"),
        ("1.0", "Connection: keep-alive\r\n", "keep-alive"),
    ],
)
async def test_a_connection_stays_open_as_its_client_wishes(
    http: Http, version: str, connection: str, told: str | None
) -> None:
    ping = f"GET /ping HTTP/{version}\r\nHost: localhost\r\n{connection}\r\n".encode()
    async with RawHttp(http.port) as raw:
        await raw.send(ping)
        assert (await raw.reply()).headers.get("Connection") == told
        if told == "close":
            assert await raw.rest() == b""
        else:
            await raw.send(ping)
            assert (await raw.reply()).status == 200


async def test_a_request_works_for_its_caller() -> None:
    """Requests that wait for a thread or for the loop go on in turns, one of each caller."""
    seen: list[str] = []

    class Noting(OpenGate):
        is_open = False

        def authorize(self, *_: object) -> None:
            seen.append(CALLER.get())

    broker = Broker(gate=Noting())
    async with listening(broker) as http:
        for address in ("127.0.0.2", "127.0.0.3"):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", http.port, local_addr=(address, 0)
            )
            writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await reader.read(1)
            writer.close()
    await broker.close()
    assert seen == ["127.0.0.2", "127.0.0.3"]
    assert not CALLER.get()
