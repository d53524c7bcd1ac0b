"""A server that takes one token, and the file of a client's token."""

import asyncio
import contextlib


def write(path, token):
    path.write_text(token)
    path.chmod(0o600)


class Guard:
    """A server that answers 401 without the valid token. ``seen`` has the credentials of all requests."""

    def __init__(self, leader=""):
        self.valid, self.leader, self.seen, self.closes = "new", leader, [], False
        self.renew = lambda: None
        self.body, self.kind = b"", "application/json"
        self.serving = set()

    async def serve(self, reader, writer):
        self.serving.add((asyncio.current_task(), writer))
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = dict(
                    line.split(": ", 1)
                    for line in head.decode().lower().split("\r\n")
                    if ": " in line
                )
                await reader.readexactly(int(lines["content-length"]))
                self.seen.append(lines.get("authorization"))
                writer.write(self.answer(lines.get("authorization")))
                if self.closes and self.seen[-1] != f"bearer {self.valid}":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def answer(self, credentials):
        if credentials != f"bearer {self.valid}":
            self.renew()
            close = "Connection: close\r\n" if self.closes else ""
            return (
                f"HTTP/1.1 401 No\r\nX-Request-Id: 1\r\nBroker-Error: unauthenticated\r\nBroker-Outcome: refused\r\n"
                f"{close}Content-Length: 2\r\n\r\nno"
            ).encode()
        leader = f"Broker-Leader: {self.leader};node=1;epoch=9\r\n" if self.leader else ""
        head = (
            f"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\n{leader}Content-Type: {self.kind}\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body

    async def start(self, tls=None, host="127.0.0.1"):
        self.server = await asyncio.start_server(self.serve, host, 0, ssl=tls)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{host}:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        self.server.close()
        for _, writer in self.serving:
            writer.close()
        await asyncio.gather(*(task for task, _ in self.serving))
