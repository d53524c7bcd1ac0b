r"""Find the end of a request, before a parser sees it.

::

    CR LF  GET /ping HTTP/1.1 CR LF  name: value CR LF ...  CR LF  body
    └ two at most             └ request line     └ head: at most HEAD_BYTES_MAX bytes
                                                                   └ Content-Length, or chunks, or none

The next parser gets the head without the line that frames the body, and checks methods, targets and fields. This module
refuses requests that two parsers may read in two ways (RFC 9112, 6.3): several lengths, a length beside chunks, transfer
codings other than chunked, folded lines, and lines that end with LF alone. It is pure: bytes in, places out.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from broker.errors import BadRequest

HEAD_BYTES_MAX: Final = 64 * 1024
FREE_CHUNKS: Final = 1000
CHUNK_BYTES_MEAN_MIN: Final = 64
"""After ``FREE_CHUNKS`` chunks, their mean size must reach this: one chunk costs as much as some hundred bytes."""
CHUNK_LINE_BYTES_MAX: Final = 512
TRAILER_BYTES_MAX: Final = 8 * 1024

_CR: Final = 13
_LF: Final = 10

HEAD_END: Final = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_BLANK = re.compile(rb"(?:\r\n){1,2}")
_LINE = re.compile(_TOKEN + rb"{1,64} [^\s]+ HTTP/1\.([01])\r\n")
_BEGUN = re.compile(_TOKEN + rb"{0,64}(?: [^\s]*(?: [HTP/1.0]{0,8}\r?)?)?|\r")
_FRAMING = re.compile(
    rb"\r\n(?:content-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r)"
    rb"|((?:content-length|transfer-encoding)(?!" + _TOKEN + rb")|[ \t])([ \t]*:)?([^\r\n]*))",
    re.IGNORECASE,
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class HttpHead(NamedTuple):
    """A whole head. ``begin`` is the place of its first byte, ``end`` the place behind its last one.

    ``length`` is the body's length in bytes; None if it comes in chunks. ``minor`` is the minor HTTP version. The line
    that frames the body stands from ``framing_begin`` to ``framing_end``, with the line end before it.
    """

    begin: int
    end: int
    minor: int
    length: int | None = 0
    framing_begin: int = 0
    framing_end: int = 0

    def without_body(self, data: bytes) -> bytes:
        """Return the head without its framing line, like the head of a request without a body."""
        if self.framing_end:
            return data[self.begin : self.framing_begin] + data[self.framing_end : self.end]
        if not self.begin and self.end == len(data):
            return data
        return data[self.begin : self.end]


def head_of(data: bytes, at: int = 0) -> HttpHead | None:
    """Return the head that begins at this place of data; None if its end has not arrived.

    Raises:
        BadRequest: the bytes are not a head, or two parsers may read it in two ways, or it is too long.
    """
    begin = at + blank_bytes(data, at) if data[at : at + 1] == b"\r" else at
    end = data.find(HEAD_END, begin)
    line = _LINE.match(data, begin)
    if line is None or end < 0:
        _check_begun(data[begin:])
        return None
    end += len(HEAD_END)
    if end - begin > HEAD_BYTES_MAX:
        raise _too_long()
    minor = 1 if line[1] == b"1" else 0
    framing = _FRAMING.search(data, line.end() - 2, end)
    if framing is None:
        return HttpHead(begin, end, minor)
    first, last = framing.span()
    length = framing[1]
    if _FRAMING.search(data, last, end) is not None:
        raise BadRequest("This request states its body's length more than once, or folds lines.")
    told = None
    if length is not None:
        told = int(length)
    else:
        _check_coding(framing, minor)
    return HttpHead(begin, end, minor, told, first, last)


def blank_bytes(data: bytes, at: int = 0) -> int:
    """Return the bytes of blank lines at this place, of which two may stand before a request."""
    blank = _BLANK.match(data, at)
    return blank.end() - at if blank is not None else 0


def _check_coding(framing: re.Match[bytes], minor: int) -> None:
    """Raise BadRequest unless the line says that the body comes in chunks."""
    _, name, colon, value = framing.groups()
    name, value = name.lower(), value.strip(b" \t")
    if name == b"transfer-encoding" and colon == b":" and minor and value.lower() == b"chunked":
        return
    if name == b"content-length":
        raise BadRequest(f"Content-Length must be a number of bytes, not {value[:80]!a}.")
    if name == b"transfer-encoding":
        raise BadRequest(
            f"Transfer-Encoding {value[:80]!a} is not supported. Use chunked, in HTTP/1.1."
        )
    raise BadRequest("A line of the head is folded. Write each field in one line.")


def _check_begun(data: bytes) -> None:
    """Raise BadRequest for bytes that can't become a request with any continuation."""
    line, end, _ = data.partition(b"\n")
    if (end and not _LINE.fullmatch(line + end)) or (not end and not _BEGUN.fullmatch(line)):
        raise BadRequest(f"This is not an HTTP/1 request: {line[:80]!a}")
    if len(data) > HEAD_BYTES_MAX:
        raise _too_long()


def _too_long() -> BadRequest:
    return BadRequest(
        f"The head of a request may have at most {HEAD_BYTES_MAX:,} bytes. This one has more."
    )


class Chunks:
    """Finds the data in a body that comes in chunks, and its end."""

    __slots__ = ("_left", "_line", "_number", "_size", "_trailer_bytes", "ended")

    def __init__(self) -> None:
        """Begin before the first chunk."""
        self._left = 0
        """The bytes of the current chunk that have not arrived, with the line end behind them."""
        self._line = b""
        """The first part of a line that has not arrived whole: a chunk's size, or a line of the trailer."""
        self._number = 0
        self._size = 0
        """The bytes of all chunks so far."""
        self._trailer_bytes = -1
        """The bytes of the trailer so far; below 0 before it begins."""
        self.ended = False

    def take(self, data: bytes, at: int, found: list[bytes]) -> int:
        """Add the chunks' data to ``found``. Return the place behind the bytes of this body.

        Raises:
            BadRequest: the bytes are not chunks, or the chunks are too small.
        """
        while at < len(data) and not self.ended:
            if self._left:
                at = self._take_chunk(data, at, found)
                continue
            end = data.find(b"\n", at)
            piece = data[at:] if end < 0 else data[at : end + 1]
            self._line += piece
            at += len(piece)
            if len(self._line) > CHUNK_LINE_BYTES_MAX:
                raise BadRequest("A line between the chunks of a body is too long.")
            if end >= 0:
                line, self._line = self._line, b""
                self._take_line(line)
        return at

    def _take_chunk(self, data: bytes, at: int, found: list[bytes]) -> int:
        """Take the bytes of the current chunk, which ends with CR LF."""
        stop = min(at + self._left, len(data))
        data_end = min(at + self._left - 2, len(data))
        if data_end > at:
            found.append(data[at:data_end])
        for place in range(max(data_end, at), stop):
            if data[place] != (_CR if self._left - (place - at) == 2 else _LF):
                raise BadRequest("A chunk of the body does not end with CR LF.")
        self._left -= stop - at
        return stop

    def _take_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise BadRequest("A line between the chunks of a body does not end with CR LF.")
        if self._trailer_bytes >= 0:
            self._trailer_bytes += len(line)
            self.ended = line == b"\r\n"
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise BadRequest("The trailer of a body is too long.")
            return
        told = _CHUNK.fullmatch(line, 0, len(line) - 2)
        if told is None:
            raise BadRequest(f"This is not the size of a chunk: {line[:40]!a}")
        size = int(told[1], 16)
        if not size:
            self._trailer_bytes = 0
            return
        self._left = size + 2
        self._number += 1
        self._size += size
        if self._number > FREE_CHUNKS and self._size < self._number * CHUNK_BYTES_MEAN_MIN:
            raise BadRequest(
                f"The chunks of this body are too small: send at least {CHUNK_BYTES_MEAN_MIN} bytes in each."
            )
