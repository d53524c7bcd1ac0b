r"""Where a request ends: what must be known of it before a parser sees it.

::

    CR LF  GET /ping HTTP/1.1 CR LF  name: value CR LF ...  CR LF  body
    └ two at most             └ request line     └ head: at most HEAD_BYTES_MAX bytes
                                                                   └ Content-Length, or chunks, or none

The parser that comes next reads all of it again, and decides about methods, targets and fields. This one
refuses what two parsers may read in two ways (RFC 9112, 6.3): several lengths, a length beside chunks, other
codings of the transfer than chunks, folded lines, lines that end with LF alone. Pure: bytes in, places out.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from broker.errors import BadRequest

HEAD_BYTES_MAX: Final = 64 * 1024
FREE_CHUNKS: Final = 1000
CHUNK_BYTES_MEAN_MIN: Final = 64
"""After some chunks their mean size must reach this: each costs as much as some hundred bytes."""
CHUNK_LINE_BYTES_MAX: Final = 512
TRAILER_BYTES_MAX: Final = 8 * 1024

LENGTH_DIGITS_MAX: Final = 18
_CR: Final = 13

HEAD_END: Final = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_BLANK = re.compile(rb"(?:\r\n){1,2}")
_LINE = re.compile(_TOKEN + rb"{1,64} [^\s]+ HTTP/1\.([01])\r\n")
_BEGUN = re.compile(_TOKEN + rb"{0,64}(?: [^\s]*(?: [HTP/1.0]{0,8}\r?)?)?|\r")
_FRAMING = re.compile(
    rb"\r\n(?:(content-length)|(transfer-encoding)|[ \t])[ \t]*:?([^\r\n]*)", re.IGNORECASE
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class Head(NamedTuple):
    """A whole head: ``begin`` is its first byte, ``end`` the first behind it.

    ``length`` is that of the body in bytes; None: it comes in chunks. ``minor`` is that of the version.
    """

    begin: int
    end: int
    length: int | None
    minor: int


def head_of(data: bytes, at: int = 0) -> Head | None:
    """Return the head that begins at a place of data; None if its end is not there.

    Raises:
        BadRequest: it is none, or two parsers may read it in two ways, or it is too long.
    """
    begin = at + blank_bytes(data, at) if data[at] == _CR else at
    end = data.find(HEAD_END, begin)
    line = _LINE.match(data, begin)
    if line is None or end < 0:
        _check_begun(data[begin:])
        return None
    end += len(HEAD_END)
    if end - begin > HEAD_BYTES_MAX:
        raise _too_long()
    minor = 1 if line[1] == b"1" else 0
    fields = _FRAMING.findall(data, line.end() - 2, end)
    return Head(begin, end, _length(fields, minor), minor)


def blank_bytes(data: bytes, at: int = 0) -> int:
    """Return how many bytes of blank lines begin at a place, of those that may stand before a request."""
    blank = _BLANK.match(data, at)
    return blank.end() - at if blank is not None else 0


def _length(fields: list[tuple[bytes, bytes, bytes]], minor: int) -> int | None:
    if not fields:
        return 0
    if len(fields) > 1:
        raise BadRequest("This request says several times how long its body is, or folds lines.")
    length, coding, value = fields[0]
    value = value.strip(b" \t")
    if length and len(value) <= LENGTH_DIGITS_MAX and value.isdigit():
        return int(value)
    if coding and minor and value.lower() == b"chunked":
        return None
    if length:
        raise BadRequest(f"Content-Length must be a number of bytes, not {value[:80]!a}.")
    if coding:
        raise BadRequest(f"Transfer-Encoding {value[:80]!a} is not read; chunked in HTTP/1.1 is.")
    raise BadRequest("A line of the head is folded. Write each field in one line.")


def _check_begun(data: bytes) -> None:
    """Raise BadRequest for what can't become a request, however it goes on."""
    line, end, _ = data.partition(b"\n")
    if (end and not _LINE.fullmatch(line + end)) or (not end and not _BEGUN.fullmatch(line)):
        raise BadRequest(f"This is no HTTP/1 request: {line[:80]!a}")
    if len(data) > HEAD_BYTES_MAX:
        raise _too_long()


def _too_long() -> BadRequest:
    return BadRequest(
        f"The head of a request may have {HEAD_BYTES_MAX:,} bytes; this one has more."
    )


class Chunks:
    """A body in chunks, as far as its framing goes."""

    __slots__ = ("_data_bytes", "_left", "_line", "_number", "_trailer_bytes", "ended")

    def __init__(self) -> None:
        """Begin before the first chunk."""
        self._left = 0
        """Bytes of the chunk under way that are still to come, with its line's end."""
        self._line = b""
        """The begun line of a chunk's size, or of the trailer."""
        self._number = 0
        self._data_bytes = 0
        self._trailer_bytes = -1
        """Of the trailer so far; below 0 before it begins."""
        self.ended = False

    def take(self, data: bytes, at: int = 0) -> int:
        """Return the place in ``data`` behind what belongs to this body. Raises BadRequest."""
        while at < len(data) and not self.ended:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            piece = data[at:] if end < 0 else data[at : end + 1]
            self._line += piece
            at += len(piece)
            if len(self._line) > CHUNK_LINE_BYTES_MAX:
                raise BadRequest("A line between the chunks of a body is too long.")
            if end >= 0:
                line, self._line = self._line, b""
                self._took(line)
        return at

    def _took(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise BadRequest("A line between the chunks of a body does not end with CR LF.")
        if self._trailer_bytes >= 0:
            self._trailer_bytes += len(line)
            self.ended = line == b"\r\n"
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise BadRequest("The trailer of a body is too long.")
            return
        size = _CHUNK.fullmatch(line, 0, len(line) - 2)
        if size is None:
            raise BadRequest(f"This is no size of a chunk: {line[:40]!a}")
        data_bytes = int(size[1], 16)
        if not data_bytes:
            self._trailer_bytes = 0
            return
        self._left = data_bytes + 2
        self._number += 1
        self._data_bytes += data_bytes
        if self._number > FREE_CHUNKS and self._data_bytes < self._number * CHUNK_BYTES_MEAN_MIN:
            raise BadRequest(
                f"The chunks of this body are too small. Send {CHUNK_BYTES_MEAN_MIN} bytes in each, or more."
            )
