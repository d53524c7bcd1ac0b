"""Reading a request's body, within bounds of size and time.

Most bodies are there before anyone asks for them, in one piece; then this costs a length check. Others
come in pieces, with or without a length told before, perhaps compressed::

    Content-Length over the bound?        413, before a byte is read
    piece by piece                        over the bound: 413; too slow: 400
    Content-Encoding: gzip                inflated step by step, over its own bound: 413
    over a budget                         413 or 503, or the largest holder is cut (see ``budget``)

Every byte is taken from the request's hold before it is kept, and room for what a step inflates to
before the step is made. The server gives the hold back at the request's end; a handler that needs the body no
more, before that.

The event loop does no more than small steps of this. What is larger goes to two threads that do nothing else, so
that neither storage waits for bodies nor bodies for storage.

After a refusal the rest of the body is of no use, so the connection ends with the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from broker.config.sections import Config
from broker.errors import BadRequest, BodyTooLarge
from broker.http.budget import BudgetKind, Hold
from broker.http.content import Content
from broker.http.inflater import Inflater
from broker.http.pieces import Pieces

THREADS: Final = 2
COUNTED_BYTES_MIN: Final = 1024
"""A smaller body that is there in whole is part of what any connection costs."""
LOOP_GZIP_BYTES_MAX: Final = 64 * 1024
LOOP_INFLATED_BYTES_MAX: Final = 256 * 1024
LOOP_MEMBERS_MAX: Final = 8
"""A body within these three is inflated on the event loop: less than 2 ms of work."""
_ENCODING: Final = "Content-Encoding"

_Result = TypeVar("_Result")


class BodyReader:
    """Reads bodies. What it has read stays in the request's hold."""

    def __init__(self, config: Config) -> None:
        """Take the bounds from the configuration."""
        self._bytes_max = config.limits.body_bytes_max
        self._counted_bytes_min = min(COUNTED_BYTES_MIN, self._bytes_max)
        self._inflated_bytes_max = config.limits.body_inflated_bytes_max
        self._config = config.server
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="body")

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def ready(
        self,
        body: bytes | Content,
        headers: Mapping[str, str],
        hold: Hold,
        bytes_max: int | None = None,
    ) -> bytes | None:
        """Return a body that is there in whole and needs no work, held; else None.

        ``bytes_max``: what its route takes at most, if that is less than what is configured.

        Raises:
            BodyTooLarge, Overloaded, Cut: as ``read`` does.
        """
        if not isinstance(body, bytes) or _ENCODING in headers:
            return None
        if len(body) >= self._counted_bytes_min:
            _check_size(len(body), _least(self._bytes_max, bytes_max))
            hold.take(BudgetKind.BODY_BYTES, len(body))
        return body

    def check_told(
        self, told: int | None, headers: Mapping[str, str], bytes_max: int | None = None
    ) -> None:
        """Refuse by its headers a body that ``read`` would refuse. ``told``: its length, if that is told.

        Raises:
            BadRequest: it is encoded in a way that is not read.
            BodyTooLarge: the length that is told is over the bound.
        """
        _is_gzip(headers)
        if told is not None:
            _check_size(told, _least(self._bytes_max, bytes_max))

    async def read(
        self,
        content: Content,
        headers: Mapping[str, str],
        hold: Hold,
        bytes_max: int | None = None,
    ) -> bytes:
        """Read a body, inflated if it is compressed; ``hold`` has its bytes.

        ``bytes_max``: what its route takes at most, as sent and as inflated.

        Raises:
            BadRequest: it stood still or came too slowly, is cut or badly framed, no gzip although it says so,
                or encoded in another way.
            BodyTooLarge: it, or what it inflates to, is over a bound; or this connection holds too much.
            Overloaded: a budget is used up.
            ConnectionError: the client is gone, or was cut to make room.
        """
        self.check_told(content.told, headers, bytes_max)
        inflater = None
        if _is_gzip(headers):
            inflater = Inflater(_least(self._inflated_bytes_max, bytes_max))
        pieces = Pieces()
        try:
            sent_max = _least(self._bytes_max, bytes_max)
            await self._read_all(content, sent_max, inflater, pieces, hold)
        except BaseException:
            # The error stays with the content and has this frame: without this, what came would stay, too.
            pieces.clear()
            hold.give(BudgetKind.BODY_BYTES)
            raise
        return pieces.whole()

    async def _read_all(
        self, content: Content, sent_max: int, inflater: Inflater | None, pieces: Pieces, hold: Hold
    ) -> None:
        patience = BodyTimeouts(
            self._config.body_stall_s,
            self._config.body_bytes_per_s_min,
            self._config.body_deadline_s,
            asyncio.get_running_loop().time,
        )
        sent = 0
        while piece := await patience.next(content):
            sent += len(piece)
            _check_size(sent, sent_max)
            hold.take(BudgetKind.BODY_BYTES, len(piece))
            if inflater is None:
                await self._keep(piece, pieces, hold)
            else:
                await self._inflate(piece, inflater, pieces, hold)
                hold.give(BudgetKind.BODY_BYTES, len(piece))
        if inflater is not None:
            inflater.finish()
        if pieces.in_slabs:
            await self._join(pieces, hold)

    async def _inflate(self, piece: bytes, inflater: Inflater, pieces: Pieces, hold: Hold) -> None:
        inflater.feed(piece)
        while inflater.has_more:
            room = inflater.step_bytes_max
            hold.take(BudgetKind.BODY_BYTES, room)
            if _is_small(inflater):
                part = inflater.step()
            else:
                part = await self._in_thread(inflater.step)
            hold.give(BudgetKind.BODY_BYTES, room - len(part))
            await self._keep(part, pieces, hold)

    async def _keep(self, piece: bytes, pieces: Pieces, hold: Hold) -> None:
        pieces.add(piece)
        if pieces.join_is_due:
            await self._join(pieces, hold)

    async def _join(self, pieces: Pieces, hold: Hold) -> None:
        hold.take(BudgetKind.BODY_BYTES, pieces.size)
        await self._in_thread(pieces.join)
        hold.give(BudgetKind.BODY_BYTES, pieces.size)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class BodyTimeouts:
    """How long the pieces of one body may be waited for.

    The client has ``stall_s`` seconds of patience. Waiting uses them up, and every byte restores what it may
    take at the lowest rate, never beyond ``stall_s``. So a body that stands still ends after that time; one
    that trickles ends, too, however much came before. ``deadline_s`` bounds them all. Time that this node
    takes to inflate does not count against the client's patience.
    """

    __slots__ = ("_bytes_per_s_min", "_deadline_s", "_left_s", "_now", "_stall_s", "_until")

    def __init__(
        self, stall_s: float, bytes_per_s_min: int, deadline_s: float, now: Callable[[], float]
    ) -> None:
        """Begin now. ``now``: monotonic seconds."""
        self._stall_s = stall_s
        self._bytes_per_s_min = bytes_per_s_min
        self._deadline_s = deadline_s
        self._now = now
        self._left_s = stall_s
        self._until = now() + deadline_s

    async def next(self, content: Content) -> bytes:
        """Return the next piece, empty at the end. Raises BadRequest, ConnectionError."""
        began = self._now()
        left_s = self.left_s(began)
        try:
            async with asyncio.timeout(left_s):
                piece = await content.readany()
        except TimeoutError:
            raise BadRequest(self._why(left_s)) from None
        except ConnectionError:
            raise
        except Exception as error:
            # The parser gives its own errors to the reader: bad chunks, a length that is not met.
            raise BadRequest(f"The body can't be read: {error}.") from error
        self.came(len(piece), self._now() - began)
        return piece

    def left_s(self, now: float) -> float:
        """Return how long the next piece may be waited for; nothing is left at 0 and below."""
        return min(self._left_s, self._until - now)

    def came(self, size: int, waited_s: float) -> None:
        """Count a piece, and the wait for it."""
        restored_s = size / self._bytes_per_s_min
        self._left_s = min(self._stall_s, self._left_s - waited_s + restored_s)

    def _why(self, left_s: float) -> str:
        if left_s < self._left_s:
            return f"The body was not whole within {self._deadline_s:g} seconds."
        return (
            f"The body stood still for {self._stall_s:g} seconds, or came more slowly than "
            f"{self._bytes_per_s_min} bytes a second."
        )


def _is_small(inflater: Inflater) -> bool:
    return (
        inflater.read <= LOOP_GZIP_BYTES_MAX
        and inflater.inflated <= LOOP_INFLATED_BYTES_MAX
        and inflater.members <= LOOP_MEMBERS_MAX
    )


def _is_gzip(headers: Mapping[str, str]) -> bool:
    """Tell by the codings that the headers list. Raises BadRequest for all but one gzip."""
    if _ENCODING not in headers:
        return False
    codings = list(_codings(headers))
    if codings and codings not in (["gzip"], ["x-gzip"]):
        raise BadRequest(
            f"{_ENCODING} {', '.join(codings)!a:.80} is not read; gzip is, once, or none."
        )
    return bool(codings)


def _codings(headers: Mapping[str, str]) -> Iterable[str]:
    """Yield the codings of all lines of the header; ``identity`` is none."""
    for name, value in headers.items():
        if name.lower() == _ENCODING.lower():
            for coding in value.lower().split(","):
                if coding.strip() not in {"", "identity"}:
                    yield coding.strip()


def _least(configured: int, bytes_max: int | None) -> int:
    return configured if bytes_max is None else min(configured, bytes_max)


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise BodyTooLarge(f"A body may have {bytes_max:,} bytes here; this one has more.")
