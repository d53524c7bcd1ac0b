"""Coordinate through ZooKeeper: the tree of nodes behind kazoo. No other module uses kazoo.

kazoo has threads of its own and blocks in them; the broker has an event loop and never blocks it. This module passes
kazoo's notices to the event loop, and puts requests into kazoo's queue::

    event loop   request ─▶ kazoo's queue             answer, contact, watch ◀─ call_soon_threadsafe
    kazoo        connection thread ◀─▶ ZooKeeper      completion and callback threads ─┘

kazoo reports the state of a connection. A node needs to know three more facts, and this module finds them out:

* *Is contact back?* It is back only after a sync: a server that lags must not give stale reads.
* *Is there contact now?* After a pause of the process (SIGSTOP, a sleeping machine), kazoo says CONNECTED until it has
  checked. So contact counts only if an answer came within a session's time-out; a heartbeat asks for one. After a
  silence only the heartbeat still asks: kazoo leaves a silent server, and tries the next one, only while there are no
  other requests. Without a quorum kazoo never reports that a session is over.
* *Is this still the same ZooKeeper?* A server whose data was wiped refuses every client that has seen a later
  transaction than its own last one. So kazoo would retry for ever under its old session. This module resets the last
  transaction that kazoo has seen. Then the server answers that the session is over.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl
from typing_extensions import override

from broker import logs
from broker.clock import Clock
from broker.config.tls_section import NO_TLS, TlsConfig
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.ports import Contact
from broker.coordination.tree import (
    RETRY_S,
    Changed,
    Created,
    NodeExists,
    NoNode,
    Stat,
    Unanswered,
    Watch,
)
from broker.errors import Unavailable
from broker.http.certificates import BadCertificates, client_context
from broker.shield import bare

log = logs.get_logger()

# kazoo warns of every attempt to connect, several per second; this module logs contact once per change.
_kazoo_log = logging.getLogger("zookeeper")
_kazoo_log.setLevel(logging.ERROR)

ASKED_MAX: Final = 100
"""The most requests in flight. kazoo's queue wakes its thread through a socket pair, which holds less than 300
wake-ups. When it is full, it blocks the caller."""

CLOSE_S: Final = 2.0
"""The time that a close waits for kazoo. kazoo may be waiting for a server that does not answer."""

HEARTBEATS: Final = 3
"""The least number of heartbeats in a session's time-out."""

# A session's handshake: lengths, protocol, last transaction seen, time-out, session, password.
_CONNECT: Final = struct.Struct(">iiqiqi16s?")
_CONNECTED: Final = struct.Struct(">iii")
_CLOSE: Final = struct.pack(">iii", 8, 1, -11)

_MEANING: Final[dict[type[Exception], type[Exception]]] = {
    NoNodeError: NoNode,
    NodeExistsError: NodeExists,
    BadVersionError: Changed,
}


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # It has no types.
    """kazoo's threads, with connections of TLS that trust the given CAs alone, and check the server's name.

    The files are read for each connection, so a new certificate counts from the next one on.
    """

    def __init__(self, tls: TlsConfig) -> None:
        super().__init__()
        self._tls = tls

    @override
    def create_connection(self, *_: Any, **asked: Any) -> socket.socket:
        context = _context_of(self._tls)
        assert context is not None, "it is made for TLS alone"
        connected = socket.create_connection(asked["address"], asked["timeout"])
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(connected, server_hostname=asked["hostname"])
        except BaseException:
            connected.close()
            raise

    @override
    def select(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets. One whose bytes OpenSSL has decrypted already is ready, too."""
        held = [each for each in args[0] if isinstance(each, ssl.SSLSocket) and each.pending()]
        if not held:
            return cast("tuple[list[Any], list[Any], list[Any]]", super().select(*args, **kwargs))
        reading, *others = super().select(*args[:3], 0)
        return [*held, *(each for each in reading if each not in held)], *others


def _context_of(tls: TlsConfig) -> ssl.SSLContext | None:
    """Return the context for ZooKeeper's servers; None: they are reached without TLS. Raises BadCertificates."""
    if tls.zookeeper_ca is None:
        return None
    return client_context(tls.zookeeper_ca, tls.zookeeper_certificate, tls.zookeeper_key)


def _secured(tls: TlsConfig) -> dict[str, Any]:
    """Return kazoo's options for these files. Raises BadCertificates."""
    options: dict[str, Any] = {}
    if _context_of(tls) is not None:
        options |= {"use_ssl": True, "handler": _TlsHandler(tls)}
    if tls.zookeeper_credentials is not None:
        user, password = _credentials(tls.zookeeper_credentials)
        options["auth_data"] = [("digest", f"{user}:{password}")]
        options["default_acl"] = [make_digest_acl(user, password, all=True)]
    return options


def _credentials(path: Path) -> tuple[str, str]:
    """Return the user and the password in a file. Raises BadCertificates, which shows neither."""
    try:
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise BadCertificates(f"{str(path)!r} can't be read: {error}") from error
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise BadCertificates(f"{str(path)!r} must have one line: user:password")
    return user, password


async def connect(
    hosts: Sequence[str],
    *,
    root: str,
    session_timeout_ms: int,
    clock: Clock,
    tls: TlsConfig = NO_TLS,
    connect_s: float = 15.0,
) -> TreeCoordinator:
    """Return a node's session with the ZooKeeper at ``hosts``, each "host:port", over ``tls`` if that has its CAs.

    Raises:
        Unavailable: no server answered within ``connect_s``.
        BadCertificates: a file of ``tls`` can't be used.
    """
    tree = ZooKeeperTree(hosts, session_timeout_ms=session_timeout_ms, clock=clock, tls=tls)
    coordinator = TreeCoordinator(tree, clock, root=root, name=secrets.token_hex(4))
    try:
        async with asyncio.timeout(connect_s):
            await tree.open()
    except TimeoutError as error:
        await coordinator.close()
        told = f"No ZooKeeper answered at {', '.join(hosts)} within {connect_s:.0f} s."
        raise Unavailable(told) from bare(error)
    except BaseException:
        await coordinator.close()
        raise
    return coordinator


async def granted_ms(host: str, port: int, asked_ms: int, tls: ssl.SSLContext | None = None) -> int:
    """Open a short session of its own, and return the session time-out that the server grants.

    kazoo does not give out the granted time-out, and the four-letter words that show it are often switched off.

    Raises:
        OSError, EOFError: the server does not answer as a ZooKeeper does.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        writer.write(_CONNECT.pack(_CONNECT.size - 4, 0, 0, asked_ms, 0, 16, bytes(16), False))
        length, _, granted = _CONNECTED.unpack(await reader.readexactly(_CONNECTED.size))
        await reader.readexactly(length - 8)
        writer.write(_CLOSE)
        await reader.read()
    finally:
        writer.close()
    return int(granted)


class ZooKeeperTree:
    """Consecutive sessions with a ZooKeeper. Create and use it on the event loop."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        session_timeout_ms: int,
        clock: Clock,
        tls: TlsConfig = NO_TLS,
    ) -> None:
        """Prepare; ``open`` connects. Raises BadCertificates."""
        self._tls = tls
        self.session = 0
        self._clock = clock
        self._timeout_ms = session_timeout_ms
        self._timeout_s = session_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[Contact], None]] = []
        self._reported = Contact.LOST
        self._connected = False
        self._silent = False
        """True if kazoo reports a connection on which no answers come any more."""
        self._state_changes = 0
        """The number of reports by kazoo on its connection. Work that began before the last report is out of date."""
        self._heard_at = clock.monotonic()
        self._asking = asyncio.Semaphore(ASKED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = asyncio.Event()
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=self._timeout_s,
            # kazoo's own policy backs off to many seconds, and a cluster would wait for so long.
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=1.5, max_jitter=0.1, max_delay=0.5
            ),
            logger=_kazoo_log,
            **_secured(tls),
        )
        self._client.add_listener(self._state_reported)

    async def open(self) -> None:
        """Connect, and wait for contact."""
        await asyncio.to_thread(self._client.start_async)
        await self._opened.wait()
        self._begin(self._send_heartbeats())
        await self._check_timeout()

    async def close(self) -> None:
        """End the session, if there is contact; wait at most CLOSE_S."""
        for task in list(self._tasks):
            task.cancel()
        closed = asyncio.Event()

        def close() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:  # noqa: BLE001  # No error may stop the process from ending.
                log.warning("closing the ZooKeeper session failed", error=repr(error))
            self._post(closed.set)

        threading.Thread(target=close, name="zookeeper close", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()
        self._state_changes += 1
        self._connected = False
        self.session = 0
        self._tell(Contact.LOST)

    # Contact.

    @property
    def contact(self) -> Contact:
        """Return the state of contact. CONNECTED needs an answer within a session's time-out."""
        silent_s = self._clock.monotonic() - self._heard_at
        if self._reported is Contact.CONNECTED and silent_s > self._timeout_s:
            return Contact.SUSPENDED
        return self._reported

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of contact."""
        self._listeners.append(changed)

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function on the event loop, from any thread. Do nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _state_reported(self, state: str) -> None:
        """Note the connection's state. This runs in kazoo's connection thread, which must not wait."""
        session = 0
        if state == KazooState.SUSPENDED:
            # The next connection sends this number: see "the same ZooKeeper" above.
            self._client.last_zxid = 0
        elif state == KazooState.CONNECTED:
            identity = self._client.client_id
            session = 0 if identity is None else identity[0]
        self._post(self._state_changed, state, session)

    def _state_changed(self, state: str, session: int) -> None:
        self._state_changes += 1
        self._connected = state == KazooState.CONNECTED
        self._silent = False
        if state == KazooState.CONNECTED:
            self._begin(self._catch_up(session, self._state_changes))
        elif state == KazooState.SUSPENDED:
            self._tell(Contact.SUSPENDED)
        else:
            self.session = 0
            self._tell(Contact.LOST)

    async def _catch_up(self, session: int, changes: int) -> None:
        """Report contact after a sync, so that no read is stale. Stop if kazoo's connection changes meanwhile."""
        while self._state_changes == changes:
            try:
                await self.sync()
            except Unanswered:
                await self._clock.sleep(RETRY_S)
                continue
            if self._state_changes == changes:
                self.session = session
                self._tell(Contact.CONNECTED)
                self._opened.set()
            return

    def _tell(self, contact: Contact) -> None:
        if contact is self._reported:
            return
        self._reported = contact
        log.info("zookeeper contact", contact=contact.value, session=f"{self.session:#x}")
        for changed in list(self._listeners):
            changed(contact)

    async def _send_heartbeats(self) -> None:
        while True:
            # The servers may grant a shorter time-out, which this module learns later.
            await self._clock.sleep(min(self._timeout_s / HEARTBEATS, 1.0))
            with suppress(Unanswered):
                await self._ask(self._client.exists_async, "/", is_beat=True)

    async def _check_timeout(self) -> None:
        """Use the session time-out that the servers grant, and warn if it differs from the configured one."""
        granted = self._timeout_ms
        for host, port in self._client.hosts:
            with suppress(OSError, EOFError, BadCertificates):
                async with asyncio.timeout(min(self._timeout_s, 1.0)):  # Else ask the next server.
                    granted = await granted_ms(host, port, self._timeout_ms, _context_of(self._tls))
                break
        self._timeout_s = granted / 1000
        if granted != self._timeout_ms:
            log.warning(
                "zookeeper grants another session time-out than session_timeout_ms: see tickTime, "
                "minSessionTimeout and maxSessionTimeout in its configuration",
                asked_ms=self._timeout_ms,
                granted_ms=granted,
            )

    # Asking.

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        """Make a node."""
        made, stat = await self._ask(
            self._client.create_async,
            path,
            data,
            ephemeral=ephemeral,
            sequence=sequential,
            include_data=True,
        )
        return Created(made, stat.ephemeralOwner)

    async def replace(self, path: str, version: int, data: bytes) -> None:
        """Remove a node and make an ephemeral one there, in one transaction."""
        transaction = self._client.transaction()
        transaction.delete(path, version)
        transaction.create(path, data, ephemeral=True)
        # kazoo returns errors as values here.
        results = await self._ask(transaction.commit_async)
        for result in results:
            if type(result) in _MEANING:
                raise _MEANING[type(result)](path) from result
        if any(isinstance(result, Exception) for result in results):
            raise Unanswered(f"replacing {path}: {results!r}")

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        """Return a node and watch it."""
        try:
            data, stat = await self._ask(self._client.get_async, path, self._watcher(watch))
        except NoNode:
            return None
        return data, Stat(stat.ephemeralOwner, stat.version)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of a node's children and watch them."""
        return list(await self._ask(self._client.get_children_async, path, self._watcher(watch)))

    async def put(self, path: str, data: bytes) -> None:
        """Set a node's data."""
        await self._ask(self._client.set_async, path, data)

    async def delete(self, path: str) -> None:
        """Remove a node. Do nothing if it is gone already."""
        with suppress(NoNode):
            await self._ask(self._client.delete_async, path)

    async def sync(self) -> None:
        """Return once later reads show at least the state at the time of this call."""
        await self._ask(self._client.sync_async, "/")

    def _watcher(self, watch: Watch | None) -> Callable[[object], None] | None:
        return None if watch is None else lambda _: self._post(watch)

    async def _ask(
        self, ask: Callable[..., Any], *arguments: object, is_beat: bool = False, **options: object
    ) -> Any:
        """Ask kazoo, and wait for the answer, at most for a session's time-out."""
        async with self._asking:
            if not self._connected or (self._fell_silent() and not is_beat):
                raise Unanswered("no contact with ZooKeeper")
            asked_at = self._clock.monotonic()
            answer = self._loop.create_future()
            ask(*arguments, **options).rawlink(lambda result: self._post(_settle, answer, result))
            try:
                async with asyncio.timeout(self._timeout_s):
                    value = await answer
            except TimeoutError as error:
                raise Unanswered("ZooKeeper does not answer") from bare(error)
            except tuple(_MEANING) as error:
                self._answered(asked_at)
                raise _MEANING[type(error)](str(error)) from error
            except KazooException as error:
                raise _unanswered(error) from error
        self._answered(asked_at)
        return value

    def _fell_silent(self) -> bool:
        """Return whether answers stopped although kazoo still reports a connection. Report a change of contact."""
        if self.contact is not self._reported:
            self._silent = True
            self._tell(Contact.SUSPENDED)
        return self._silent

    def _answered(self, asked_at: float) -> None:
        """Note that a request of that time was answered."""
        fell_silent, self._silent = self._fell_silent(), False
        self._heard_at = max(self._heard_at, asked_at)
        if fell_silent:
            self._tell(Contact.CONNECTED)

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if result.successful():
        answer.set_result(result.value)
    else:
        answer.set_exception(result.exception)


def _unanswered(error: KazooException) -> Unanswered:
    """Treat every other error of kazoo as no answer."""
    if not isinstance(error, ConnectionLoss | SessionExpiredError):
        # Such as a missing permission: callers would retry for ever, so log the error.
        log.warning("zookeeper refuses", error=repr(error))
    return Unanswered(repr(error))
