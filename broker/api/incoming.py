"""Reading a request's body, within bounds of size and time.

Most bodies are there before anyone asks for them, in one piece; then this costs a length check. Others
come in pieces, with or without a length told before, perhaps compressed::

    Content-Length over the bound?        413, before a byte is read
    piece by piece                        over the bound: 413; still for too long: 400
    Content-Encoding: gzip                inflated piece by piece, over its own bound: 413
    all bodies together over a budget     503, try again

After a refusal the rest of the body is of no use to anyone, so the connection ends with the reply.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from aiohttp import StreamReader

from broker.config import Config
from broker.errors import BadRequest, BodyTooLarge, Overloaded

GZIP_WINDOW: Final = 31
INFLATE_STEP_BYTES: Final = 256 * 1024


class Budget:
    """Bytes of bodies that are being read or answered, over all connections."""

    __slots__ = ("bytes_max", "held")

    def __init__(self, bytes_max: int) -> None:
        """Start with nothing held."""
        self.bytes_max = bytes_max
        self.held = 0

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes. Raises Overloaded, holding nothing, if there is no room."""
        if self.held + size > self.bytes_max:
            raise Overloaded("Too many bytes of requests are under way. Try again.")
        self.held += size


class BodyReader:
    """Reads bodies. What it has read is held in the budget until the caller gives it back."""

    def __init__(self, config: Config) -> None:
        """Take the bounds from the configuration."""
        self.budget = Budget(config.limits.queued_bytes_max)
        self._bytes_max = config.limits.body_bytes_max
        self._inflated_bytes_max = config.limits.body_inflated_bytes_max
        self._stall_s = config.server.body_stall_s

    def ready(self, content: StreamReader, headers: Mapping[str, str]) -> bytes | None:
        """Return a body that is there in whole and needs no work, held; else None.

        Raises:
            BodyTooLarge, Overloaded: as ``read`` does.
        """
        if not content.is_eof() or "Content-Encoding" in headers:
            return None
        body = content.read_nowait()
        self._check_size(len(body))
        self.budget.take(len(body))
        return body

    async def read(self, content: StreamReader, headers: Mapping[str, str]) -> bytes:
        """Read a body, inflated if it is compressed, and hold its bytes.

        Raises:
            BadRequest: it stood still, is cut or badly framed, or no gzip although it says so.
            BodyTooLarge: it, or what it inflates to, is over a bound.
            Overloaded: the budget is used up.
            ConnectionError: the client is gone.
        """
        told = headers.get("Content-Length", "")
        self._check_size(int(told) if told.isdecimal() else 0)
        inflater = self._inflater(headers)
        body = bytearray()
        read = held = 0
        try:
            while piece := await self._piece(content):
                read += len(piece)
                self._check_size(read)
                # What a few bytes inflate to is held step by step: several bombs stay within the budget.
                for part in (piece,) if inflater is None else inflater.inflate(piece):
                    self.budget.take(len(part))
                    held += len(part)
                    body += part
            if inflater is not None:
                inflater.finish()
            return bytes(body)
        except BaseException:
            self.budget.held -= held
            raise

    async def _piece(self, content: StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._stall_s):
                return await content.readany()
        except TimeoutError:
            raise BadRequest(f"The body stood still for {self._stall_s:g} seconds.") from None
        except ConnectionError:
            raise
        except Exception as error:
            # The parser gives its own errors to whoever reads: bad chunks, a length that is not met.
            raise BadRequest(f"The body can't be read: {error}.") from error

    def _inflater(self, headers: Mapping[str, str]) -> Inflater | None:
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding in {"", "identity"}:
            return None
        if encoding in {"gzip", "x-gzip"}:
            return Inflater(self._inflated_bytes_max)
        raise BadRequest(f"Content-Encoding {encoding!a:.80} is not read; gzip is.")

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise BodyTooLarge(f"A body may have {self._bytes_max} bytes; this one has more.")


class Inflater:
    """Unpacks gzip, one or several members, never past a bound."""

    def __init__(self, bytes_max: int) -> None:
        """Start before the first member."""
        self._bytes_max = bytes_max
        self._member = zlib.decompressobj(GZIP_WINDOW)
        self._began = False
        self._inflated = 0

    def inflate(self, piece: bytes) -> Iterator[bytes]:
        """Yield what ``piece`` unpacks to, in steps. Raises BadRequest, BodyTooLarge."""
        while piece:
            if self._member.eof:
                self._member = zlib.decompressobj(GZIP_WINDOW)
            self._began = True
            try:
                step = self._member.decompress(piece, INFLATE_STEP_BYTES)
            except zlib.error as error:
                raise BadRequest(f"The body is no gzip: {error}.") from error
            self._inflated += len(step)
            if self._inflated > self._bytes_max:
                raise BodyTooLarge(
                    f"A body may unpack to {self._bytes_max} bytes; this one is larger."
                )
            yield step
            piece = self._member.unused_data or self._member.unconsumed_tail

    def finish(self) -> None:
        """Raise BadRequest unless the last member is whole; an empty body is whole."""
        if self._began and not self._member.eof:
            raise BadRequest("The body's gzip is cut off.")
