"""The web services of the examples answer 503 without a broker, 504 when it is silent, and are drained by SIGTERM."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import ClientSession

from broker.client import SyncClient
from tests.kit.served import ServedNode
from tests.kit.serving import eventually, quiet_port

FOLDER = Path(__file__).parents[2] / "examples/web"
ORDERS, VISITS = "examples/orders", "examples/visits"
FASTAPI = ("-m", "uvicorn", "--app-dir", str(FOLDER), "orders_fastapi:app", "--port")
AIOHTTP = (str(FOLDER / "orders_aiohttp.py"),)
DEADLINE_S = 30.0


class Valve:
    """A proxy before a broker. While it is shut it holds the broker's answers back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.open = asyncio.Event()
        self.held = asyncio.Event()
        self.open.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            self.open.set()
            server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
            forth = asyncio.create_task(self._copy(reader, requests, shuts=False))
            await self._copy(answers, writer, shuts=True)
            await forth

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, shuts: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if shuts and not self.open.is_set():
                    self.held.set()
                    await self.open.wait()
                target.write(data)
        target.close()


class Service:
    """One of the programs, as a process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, http: ClientSession) -> None:
        self.process, self._port, self._http = process, port, http

    async def order(self, key: str, text: str = "") -> tuple[int, dict[str, object], str | None]:
        """Place an order; return the status, the body and Retry-After."""
        headers = {"Idempotency-Key": key}
        url = f"http://127.0.0.1:{self._port}/orders"
        async with self._http.post(url, data=text or key, headers=headers) as answer:
            return answer.status, await answer.json(), answer.headers.get("Retry-After")

    async def until(self, *, listens: bool) -> None:
        """Wait until the program listens, or no longer does: not every one says so."""
        await eventually(lambda: self._listens() == listens, self._listens)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port)).close()
        except ConnectionRefusedError:
            return False
        return True

    async def ended(self) -> str:
        """Return what the program wrote by its end, which is a success."""
        assert self.process.stdout is not None
        said = (await self.process.stdout.read()).decode()
        assert await self.process.wait() in (0, -signal.SIGTERM), said
        return said


@asynccontextmanager
async def serving(
    program: tuple[str, ...], broker_url: str, answer_within_s: float
) -> AsyncIterator[Service]:
    port = quiet_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(*program, str(port)),
        env={"BROKER_URL": broker_url, "ANSWER_WITHIN_S": str(answer_within_s)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(DEADLINE_S), ClientSession() as http:
            service = Service(process, port, http)
            await service.until(listens=True)
            yield service
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def create_topics(url: str) -> None:
    with SyncClient(url) as client:
        client.create_topic(ORDERS)
        client.create_topic(VISITS)


def payloads(url: str, topic: str) -> list[bytes]:
    with SyncClient(url) as client:
        return [message.payload for message in client.poll(topic)]


@pytest.mark.parametrize("program", [FASTAPI, AIOHTTP], ids=["fastapi", "aiohttp"])
async def test_a_service_answers_by_the_outcome_of_its_publish(program: tuple[str, ...]) -> None:
    async with AsyncExitStack() as broker:
        node = broker.enter_context(ServedNode())
        valve = Valve(node.port)
        url = await broker.enter_async_context(valve.listening())
        async with serving(program, url, 0.5) as service:
            status, missing, _ = await service.order("cart-0")
            assert (status, missing["code"]) == (500, "topic_not_found")
            await asyncio.to_thread(create_topics, node.url)

            status, first, _ = await service.order("cart-1")
            assert (status, first["replayed"]) == (201, False)
            assert await service.order("cart-1") == (201, {**first, "replayed": True}, None)
            assert (await service.order("cart-1", "another order"))[0] == 422
            assert (await service.order("k" * 300))[0] == 400

            valve.open.clear()
            status, unknown, _ = await service.order("cart-2")
            assert (status, unknown["outcome"]) == (504, "unknown")
            valve.open.set()
            assert (await service.order("cart-2"))[0] == 201
            assert await asyncio.to_thread(payloads, node.url, ORDERS) == [b"cart-1", b"cart-2"]

            await broker.aclose()
            status, refused, retry_after = await service.order("cart-3")
            assert (status, refused["outcome"]) == (503, "refused")
            assert int(retry_after or 0) >= 1


@pytest.mark.parametrize("program", [FASTAPI, AIOHTTP], ids=["fastapi", "aiohttp"])
async def test_a_service_that_is_stopped_finishes_its_requests_and_publishes_the_rest(
    program: tuple[str, ...],
) -> None:
    with ServedNode() as node:
        create_topics(node.url)
        valve = Valve(node.port)
        async with valve.listening() as url, serving(program, url, DEADLINE_S) as service:
            valve.open.clear()
            order = asyncio.create_task(service.order("cart-1"))
            await valve.held.wait()
            service.process.send_signal(signal.SIGTERM)
            await service.until(listens=False)
            valve.open.set()
            assert (await order)[0] == 201
            assert "published=1, refused=0, unknown=0, dropped=0" in await service.ended()
        for topic in (ORDERS, VISITS):
            assert await asyncio.to_thread(payloads, node.url, topic) == [b"cart-1"]
