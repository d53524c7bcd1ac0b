"""A cluster in one process: nodes on real sockets that forward, move leadership, drain and die.

All nodes share one log per topic. A node that does not lead only counts the request as forwarded: these tests
check which node a client asks, not how nodes talk to each other.
"""

import asyncio
import re
from collections import Counter, deque

from broker.model import Message, log_key
from broker.wire import avro
from tests.kit.poll_replies import page_of
from tests.kit.request_bodies import read_poll

_TOPIC = re.compile(r"/v1/namespaces/(\w+)/topics/(\w+)/?(\w*)")
FAREWELL = (
    b"HTTP/1.1 408 Request Timeout\r\nBroker-Outcome: refused\r\n"
    b"Connection: close\r\nContent-Length: 0\r\n\r\n"
)


class Cluster:
    """Nodes 0 to n-1, and their shared topics."""

    def __init__(self, count):
        self.nodes = [Node(self, number) for number in range(count)]
        self.leaders = {}
        self.logs = {}
        self.keys = {}
        self.forwarded = Counter()
        self.changed = asyncio.Condition()

    @property
    def urls(self):
        return [node.url for node in self.nodes]

    def leads(self, topic, number, epoch):
        self.leaders[topic] = (number, epoch)

    def header(self, topic):
        number, epoch = self.leaders[topic]
        return f"{self.nodes[number].url};node={number};epoch={epoch}"

    async def note(self):
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition, what):
        try:
            async with self.changed, asyncio.timeout(10):
                await self.changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.forwarded}, {self.leaders}, {self.logs}") from None

    def payloads(self, topic):
        return [message.payload for message in self.logs.get(topic, [])]

    def publish(self, topic, body, key):
        if key is not None and key in self.keys:
            return
        log = self.logs.setdefault(topic, [])
        for payload in avro.decode_publish_request(body, messages_max=10**6).payloads:
            log.append(Message(log_key(1000 + len(log), 0) + bytes(10), payload))
        self.keys[key] = True


class Node:
    """One node.

    ``holds`` has an event (or None) for each of the next requests; the request waits for it. The node answers the
    next ``refuse`` requests with *overloaded*. It stores the next ``swallow`` publishes and cuts the connection
    instead of an answer. ``received`` counts the requests that the node has read, also those that it has not begun.
    """

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.requests = []
        self.received = 0
        self.connections = set()
        self.holds = deque()
        self.refuse = 0
        self.draining = False
        self.swallow = 0
        self.header = None
        self.url = ""
        self._server = None
        self._port = 0

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.draining = False

    async def kill(self):
        """Die: requests in flight are lost, and new connections are refused."""
        self._server.close()
        for writer in list(self.connections):
            writer.transport.abort()

    def stop_reading(self):
        """Leave further requests unread in the sockets."""
        for writer in list(self.connections):
            writer.transport.pause_reading()

    def hang_up(self, last_words=b""):
        """End every connection without reading more."""
        self.stop_reading()
        for writer in list(self.connections):
            writer.write(last_words)
            writer.write_eof()

    async def _serve(self, reader, writer):
        self.connections.add(writer)
        waiting = asyncio.Queue()
        reading = asyncio.create_task(self._read(reader, waiting))
        try:
            while (request := await waiting.get()) and await self._answer(writer, *request):
                pass
        except ConnectionError:
            pass
        finally:
            reading.cancel()
            self.connections.discard(writer)
            writer.close()

    async def _read(self, reader, waiting):
        """Read requests ahead of the answers, until the connection ends."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in head)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                waiting.put_nowait((head, headers, body))
                self.received += 1
                await self.cluster.note()
        except (asyncio.IncompleteReadError, ConnectionError):
            waiting.put_nowait(None)

    async def _answer(self, writer, head, headers, body):
        """Answer one request. Return True if the connection stays open."""
        match = _TOPIC.match(head[0].split(" ")[1])
        topic, action = "/".join(match.group(1, 2)), match[3]
        self.requests.append((topic, action))
        await self.cluster.note()
        hold = self.holds.popleft() if self.holds else None
        if hold is not None:
            await hold.wait()
        if self.cluster.leaders[topic][0] != self.number:
            self.cluster.forwarded[topic] += 1
        status, answer = 200, b""
        if self.refuse:
            self.refuse -= 1
            status = 503
        elif action == "publish":
            self.cluster.publish(topic, body, headers.get("idempotency-key"))
            if self.swallow:
                self.swallow -= 1
                return False
        elif action == "poll":
            answer = await self._poll(topic, body, wait="wait=" in head[0])
        await self.cluster.note()
        last = self.draining
        writer.write(
            f"HTTP/1.1 {status} OK\r\nX-Request-Id: 1\r\n"
            f"Broker-Leader: {self.header or self.cluster.header(topic)}\r\n"
            f"{'Connection: close' if last else 'X-Stays: open'}\r\n"
            f"Broker-Outcome: {'refused' if status == 503 else 'done'}\r\n"
            f"Content-Length: {len(answer)}\r\n\r\n".encode()
            + answer
        )
        await writer.drain()
        return not last

    async def _poll(self, topic, body, *, wait):
        poll = read_poll(avro, body)

        def page():
            log = self.cluster.logs.get(topic, [])
            return [m for m in log if poll.start is None or m.id > poll.start][: poll.limit]

        if wait and not page():
            leader = self.cluster.leaders[topic]
            await self.cluster.until(
                lambda: page() or self.draining or self.cluster.leaders[topic] != leader,
                "a message, or an end of the wait",
            )
        if not page():
            return b"\x00"
        return page_of(page()) + b"\x00"
