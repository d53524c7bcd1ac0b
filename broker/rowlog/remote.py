"""Remote listeners: the processor offers messages by HTTP to any node of the rowlog that listens.

A listening node serves the broker's own protocol, with its errors and codes. It is a member of the rowlog, under its
URL. The processor asks each member which subscriptions it listens to. It offers each message to the listening member
that has the fewest of this processor's messages in work. The processor's own listeners count as one more member::

    GET  /v1/rowlogs/{rowlog}                  {"rowlog": "mq", "listeners": ["indexer"]}
    POST /v1/rowlogs/{rowlog}/{subscription}   body: a message          {"done": true}, {"done": false, "reason": "..."}
    GET  /metrics                              figures, in Prometheus's text format

    message    01 | timestamp int64 | seq int64 | row: length int32, bytes | data: length int32, bytes | payload

The processor asks again every few seconds. If a member can't be reached, another is offered the message, and this one is
offered nothing until it has answered a question again. If a member does not answer in time, the try has failed: the
message is offered again later, perhaps to another node. If the processor's connection ends, its call of the listener is
cancelled.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from broker import logs
from broker.clock import Clock
from broker.config.sections import EVERY_ADDRESS, Config
from broker.coordination.ports import INSTANCES_MAX, Membership
from broker.errors import BadRequest, BrokerError, Forbidden, NotFound, Unavailable
from broker.http.answer import Address, NoAnswer, NotSent
from broker.http.exchange import Admitted
from broker.http.outbound import OutboundConnection
from broker.http.pool import Pool, open_connection
from broker.http.reply import Answer, Headers, Reply, error_reply, json_reply, unexpected_reply
from broker.http.request import NO_NAMES, Request
from broker.http.server import Server
from broker.principal import NOWHERE, Remote
from broker.rowlog.listeners import (
    ListenerFailed,
    LocalListeners,
    NoListener,
    reason_of,
    too_late,
)
from broker.rowlog.rows import Message
from broker.shield import bare
from broker.wire.jsontext import json_of

log = logs.get_logger()

PREFIX: Final = "/v1/rowlogs/"
LOOK_S: Final = 2.0
"""How often members are asked for their listeners."""
ASK_S: Final = 5.0
CONNECT_S: Final = 2.0
IDLE_S: Final = 30.0
CONNECTIONS_MAX: Final = 64
"""How many messages of one subscription are with nodes at once."""
PLACE_S: Final = 300.0
"""How long a message waits for one of these places. This is no failed try."""
OFFER_S: Final = 300.0
"""How long a node lets a listener run. It is a bound: the processor's own time-out is meant to be shorter."""
_head = struct.Struct(">Bqq")
_length = struct.Struct(">i")


def encode_message(message: Message) -> bytes:
    """Write a message for a remote listener."""
    return b"".join(
        (
            _head.pack(1, message.timestamp, message.seq),
            _length.pack(len(message.row)),
            message.row,
            _length.pack(len(message.data)),
            message.data,
            message.payload,
        )
    )


def decode_message(rowlog: str, body: bytes) -> Message:
    """Read a message. Raises BadRequest."""
    try:
        version, timestamp, seq = _head.unpack_from(body)
        if version != 1:
            raise BadRequest(f"A message of version {version}; this release reads 1.")
        row, at = _piece(body, _head.size)
        data, at = _piece(body, at)
    except (struct.error, ValueError) as error:
        raise BadRequest("The message is not whole.") from error
    return Message(rowlog, row, seq, timestamp, data, body[at:])


def _piece(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _length.unpack_from(body, at)
    end = at + _length.size + length
    if length < 0 or end > len(body):
        raise ValueError("a length that does not fit")
    return body[at + _length.size : end], end


def announced_url(host: str, port: int, url: str) -> str:
    """Return the URL under which other nodes reach this one: ``url``, or else one of host and port. Raises BadRequest."""
    if not url and host in EVERY_ADDRESS:
        raise BadRequest(f"{host!r} names no machine: give the URL under which others reach it.")
    made = url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        Address.of(made)
    except ValueError as error:
        raise BadRequest(f"Listeners can't be reached at {made!r}: {error}") from error
    return made


class ListenerNode:
    """Serves the local listeners of a process to processors on other nodes."""

    def __init__(
        self,
        rowlog: str,
        listeners: LocalListeners,
        figures: Callable[[], str],
        clock: Clock,
        payload_bytes_max: int,
    ) -> None:
        """Serve ``listeners`` once ``start`` is called."""
        self._rowlog = rowlog
        self._listeners = listeners
        self._figures = figures
        self._body_bytes_max = payload_bytes_max + (1 << 20)
        self._server = Server(self, Config(), clock)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        await self._server.start(host, port)
        return self._server.port

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close(1.0)

    # The Application that the server calls.

    def admit(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        remote: Remote = NOWHERE,
        query_string: str = "",
    ) -> Admitted | Reply:
        """Return the target of a request. Raises NotFound, Forbidden."""
        if "Origin" in headers:
            raise Forbidden("No page may call listeners.")
        if method == "GET" and path in {"/metrics", PREFIX + quote(self._rowlog, safe="")}:
            return Admitted(path, NO_NAMES, ASK_S, 0)
        begin = PREFIX + quote(self._rowlog, safe="") + "/"
        if method != "POST" or not path.startswith(begin):
            raise NotFound(f"Nothing is at {method} {path}.")
        return Admitted((unquote(path[len(begin) :]),), NO_NAMES, OFFER_S, self._body_bytes_max)

    def timeout_s(self, headers: Mapping[str, str]) -> float:
        """Return how long a request may take."""
        del headers
        return OFFER_S

    async def answer(self, found: Any, request: Request) -> Answer:
        """Call a listener, or answer with the list of listeners or the metrics."""
        if found == "/metrics":
            return Reply(200, self._figures().encode(), "text/plain; version=0.0.4")
        if isinstance(found, str):
            return json_reply({"rowlog": self._rowlog, "listeners": self._listeners.names})
        try:
            return await self._offered(found[0], request)
        except BrokerError as error:
            return error_reply(error, request.headers)

    async def _offered(self, subscription: str, request: Request) -> Reply:
        if self._server.draining:
            raise Unavailable("This node ends.")
        if not self._listeners.has(subscription):
            raise NotFound(f"Subscription '{subscription}' has no listener here.")
        message = decode_message(self._rowlog, request.body)
        calling = asyncio.create_task(_called(self._listeners, subscription, message))
        waited: list[asyncio.Future[Any]] = [calling, request.abandoned()]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            calling.cancel()
        # After this answer the processor may offer the message to another node, so the listener ends first.
        await asyncio.wait([calling])
        if calling.cancelled():
            raise Unavailable("The processor has gone, or this node ends.")
        try:
            return json_reply({"done": calling.result()})
        except Exception as error:  # noqa: BLE001 - The answer carries any error of the listener.
            return json_reply({"done": False, "reason": reason_of(error)})
        finally:
            del calling, waited  # The error's traceback keeps this frame.

    def refuse(
        self, error: BrokerError, path: str, headers: Mapping[str, str], request_id: str = ""
    ) -> Reply:
        """Return the reply to a request that was not admitted."""
        del path, request_id
        return error_reply(error, headers, close=True)

    def failure(self, error: Exception, headers: Mapping[str, str], request_id: str) -> Reply:
        """Return the reply for an error."""
        if isinstance(error, BrokerError):
            return error_reply(error, headers)
        return unexpected_reply(headers, request_id)

    def headers(self, headers: Mapping[str, str]) -> Headers:
        """Add nothing to replies."""
        del headers
        return ()


async def _called(listeners: LocalListeners, subscription: str, message: Message) -> bool:
    return await listeners.offer(subscription, message, OFFER_S)


class _Ask(NamedTuple):
    """A request to a node."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class RemoteListeners:
    """Offers messages to the listeners of this process and of all members."""

    def __init__(
        self,
        rowlog: str,
        local: LocalListeners,
        members: Callable[[], Membership | None],
        clock: Clock,
    ) -> None:
        """Ask no member yet: ``run`` does, again and again."""
        self._rowlog = quote(rowlog, safe="")
        self._local = local
        self._members = members
        self._clock = clock
        self._known: dict[str, set[str]] = {}
        self._busy: Counter[str] = Counter()
        self._odd: set[str] = set()
        """The members whose URL or answer could not be read. Each was logged once."""
        self._pools: defaultdict[str, Pool[OutboundConnection]] = defaultdict(
            lambda: Pool(CONNECTIONS_MAX, IDLE_S)
        )
        """The connections of each subscription: one with slow listeners takes none of another's."""
        self._asking: Pool[OutboundConnection] = Pool(INSTANCES_MAX, IDLE_S)
        """One connection to each member, for questions."""
        self.looked = asyncio.Event()
        """Set each time after all members were asked."""

    def has(self, subscription: str) -> bool:
        """Return whether a listener takes messages of a subscription."""
        return self._local.has(subscription) or bool(self._urls(subscription))

    def _urls(self, subscription: str) -> list[str]:
        return [url for url, names in self._known.items() if subscription in names]

    async def run(self) -> None:
        """Ask members for their listeners again and again, until cancelled."""
        try:
            while True:
                try:
                    await self.look()
                except Exception:  # A bug at one member must not end the asking.
                    log.exception("rowlog members can't be asked")
                await self._clock.sleep(LOOK_S)
        finally:
            for pool in (self._asking, *self._pools.values()):
                pool.close("the rowlog was closed")

    async def look(self) -> None:
        """Ask all members once."""
        membership = self._members()
        nodes = {} if membership is None else membership.members.nodes
        mine = None if membership is None else membership.me.url
        urls = {node.url for node in nodes.values()} - {mine}
        urls = {url for url in urls if url.startswith("http")}
        for url in self._known.keys() - urls:
            del self._known[url]
        for url, names in zip(
            urls, await asyncio.gather(*(self._listening(url) for url in urls)), strict=True
        ):
            if names is None:
                self._known.pop(url, None)
            else:
                self._known[url] = names
        self.looked.set()

    async def _listening(self, url: str) -> set[str] | None:
        ask = _Ask("GET", PREFIX + self._rowlog, {}, b"")
        try:
            status, told = await self._ask(self._asking, url, ask, ASK_S)
            return set(told.get("listeners", ())) if status == 200 else None
        except (NotSent, NoAnswer):
            return None
        except (
            ValueError,
            TypeError,
        ) as error:  # From a URL or an answer: it is no listening node.
            if url not in self._odd:
                log.warning("rowlog member can't be asked", url=url, reason=str(error))
            self._odd.add(url)
            return None

    async def offer(self, subscription: str, message: Message, timeout_s: float) -> bool:
        """Offer a message to the least busy listening node. Skip nodes that can't take it now.

        Raises ListenerFailed, NoListener.
        """
        left = self._urls(subscription)
        if self._local.has(subscription):
            left.append("")
        while left:
            url = min(left, key=lambda each: self._busy[each])
            left.remove(url)
            self._busy[url] += 1
            try:
                if not url:
                    return await self._local.offer(subscription, message, timeout_s)
                return await self._offer_to(url, subscription, message, timeout_s)
            except NotSent:
                self._known.pop(url, None)
            finally:
                self._busy[url] -= 1
        raise NoListener("no node that listens can be reached")

    async def _offer_to(
        self, url: str, subscription: str, message: Message, timeout_s: float
    ) -> bool:
        path = f"{PREFIX}{self._rowlog}/{quote(subscription, safe='')}"
        headers = {"Content-Type": "application/octet-stream", "Accept": "application/json"}
        ask = _Ask("POST", path, headers, encode_message(message))
        pool = self._pools[subscription]
        # The wait for a connection is no time of the listener's: a message must not die of it.
        if not await pool.enter(PLACE_S):
            raise NoListener("all connections of the subscription are in use")
        try:
            async with asyncio.timeout(timeout_s):
                status, told = await self._ask(pool, url, ask, timeout_s)
        except TimeoutError as error:
            raise too_late(timeout_s) from bare(error)
        except NoAnswer as error:
            raise ListenerFailed(f"{url} gave no answer: {error}") from error
        finally:
            pool.leave()
        if status in {404, 503}:
            raise NotSent("it ends, or listens no more")
        if status != 200:
            raise ListenerFailed(f"{url} answered with status {status}: {told.get('message', '')}")
        if not isinstance(told.get("done"), bool):
            raise ListenerFailed(
                f"{url} answered with status 200, but not as a listening node does"
            )
        if not told["done"] and told.get("reason"):
            raise ListenerFailed(f"{url}: {told['reason']}")
        return bool(told["done"])

    @staticmethod
    async def _ask(
        pool: Pool[OutboundConnection], url: str, ask: _Ask, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        """Return status and body. Raises NotSent, NoAnswer."""
        connection = pool.take(url)
        if connection is None:
            connection = pool.add(OutboundConnection(url, {"User-Agent": "broker-rowlog"}))
            try:
                await open_connection(connection, CONNECT_S)
            except BaseException:
                connection.close("not connected")
                pool.put_back(connection)
                raise
        try:
            reply = await connection.exchange(ask, timeout_s)
        finally:
            pool.put_back(connection)
        told: Any = {}
        with suppress(ValueError):
            told = json_of(reply.body)
        return reply.status, told if isinstance(told, dict) else {}
