"""A plain HTTP client on keep-alive connections; it does not know about brokers, leaders or drains.

It does only what HTTP requires of every client. After an answer with ``Connection: close`` it opens a new connection.
It silently replaces a connection that ended while no request was in flight. It records each request that was sent and
got no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from chaos.history import History

CONNECT_S = 30.0
ANSWER_S = 60.0
PAUSE_S = 0.01


class KeepAlive:
    """Publishes to one topic through one node after the other, one request at a time.

    Attributes:
        unanswered: Requests whose connection ended before an answer.
        refused: Answers with another status than 200.
        answered: The number of answers.
    """

    def __init__(self, name: str, urls: Sequence[str], topic: str, history: History) -> None:
        """Begin with the first of ``urls``; after the end of a connection use the next."""
        self.unanswered: list[str] = []
        self.refused: list[str] = []
        self.answered = 0
        self._name = name
        self._addresses = [(urlsplit(url).hostname, urlsplit(url).port) for url in urls]
        self._topic = topic
        self._history = history
        self._turn = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set."""
        namespace, _, topic = self._topic.partition("/")
        path = f"/v1/namespaces/{namespace}/topics/{topic}/publish"
        told = f"{namespace}:{topic}"
        count = 0
        try:
            while not stop.is_set():
                payload = f"{self._name}:{count}"
                count += 1
                asked = {"payloads": [payload], "pointer": None, "key": None, "generation": 1}
                reader, writer = await self._connected()
                # In a history, a process without an answer makes no more calls. A new process continues.
                process = f"{self._name}+{len(self.unanswered)}"
                ending = self._history.invoke(process, "publish", told, asked)
                writer.write(
                    f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                    f"Content-Length: {len(payload)}\r\n\r\n{payload}".encode()
                )
                try:
                    async with asyncio.timeout(ANSWER_S):
                        status, outcome, closes = await _answer(reader)
                except (OSError, asyncio.IncompleteReadError) as error:
                    ending.unknown(repr(error))
                    self.unanswered.append(f"{payload}: {error!r}")
                    await self._close()
                    continue
                self.answered += 1
                if status == 200:
                    ending.ok({"last": ""}, "")
                else:
                    self.refused.append(f"{payload}: {status} {outcome}")
                    (ending.fail if outcome == "refused" else ending.unknown)(str(status))
                if closes:
                    await self._close()
        finally:
            await self._close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and not self._streams[0].at_eof():
            return self._streams
        await self._close()
        async with asyncio.timeout(CONNECT_S):
            while self._streams is None:
                host, port = self._addresses[self._turn % len(self._addresses)]
                try:
                    self._streams = await asyncio.open_connection(host, port)
                except OSError:
                    self._turn += 1
                    await asyncio.sleep(PAUSE_S)
        return self._streams

    async def _close(self) -> None:
        if self._streams is not None:
            self._turn += 1
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, str, bool]:
    """Read an answer; return its status, its outcome, and whether it ends the connection."""
    status = int((await reader.readuntil(b"\r\n")).split(b" ")[1])
    headers: dict[str, str] = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    await reader.readexactly(int(headers.get("content-length", "0")))
    return status, headers.get("broker-outcome", ""), headers.get("connection") == "close"
