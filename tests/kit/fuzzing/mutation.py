"""Make small changes of cases, and of their bytes on the wire."""

from __future__ import annotations

import gzip
import random

from tests.kit.fuzzing.grammar import Case, odd_bytes

BODY_BYTES_MAX = 8_192
"""The limit of a body's growth over many mutations."""
FRAMING = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Host: a\r\nHost: b\r\n",
    b" folded: line\r\n",
    b": no name\r\n",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"\x16\x03\x01",
)


def wire(case: Case) -> bytes:
    """Return a case as a request with correct framing."""
    lines = [f"{case.method} {case.target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in case.headers]
    if case.body or case.method != "GET":
        lines.append(f"Content-Length: {len(case.body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + case.body


def mutated(case: Case, other: Case, rng: random.Random) -> Case:
    """Change the body of a case, or take over parts of another one."""
    kind = rng.random()
    if kind < 0.12:
        return case._replace(headers=other.headers)
    if kind < 0.2:
        return case._replace(target=other.target.partition("?")[0] + _query(case.target))
    if kind < 0.25 and case.body:
        headers = (*case.headers, ("Content-Encoding", "gzip"))
        return case._replace(headers=headers, body=_gzipped(case.body, rng)[:BODY_BYTES_MAX])
    if kind < 0.35:
        return case._replace(body=other.body[:BODY_BYTES_MAX])
    body = case.body
    for _ in range(rng.choice((1, 1, 2, 4))):
        body = changed(body, other.body, rng)
    return case._replace(body=body[:BODY_BYTES_MAX])


def changed(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Change bytes at one place."""
    at = rng.randrange(len(data) + 1)
    before, behind = data[:at], data[at:]
    kind = rng.randrange(8)
    if kind == 0:
        behind = b""
    elif kind == 1:
        behind = odd_bytes(rng) + behind
    elif kind == 2:
        behind = odd_bytes(rng) + behind[rng.randrange(9) :]
    elif kind == 3:
        behind = other[rng.randrange(len(other) + 1) :]
    elif kind == 4:
        behind = behind[:16] * rng.randrange(1, 9) + behind[16:]
    elif kind == 5:
        behind = behind[rng.randrange(1, 5) :]
    elif kind == 6 and behind:
        behind = bytes((behind[0] ^ (1 << rng.randrange(8)),)) + behind[1:]
    else:
        behind = rng.randbytes(rng.randrange(1, 5)) + behind[1:]
    return before + behind


def misframed(data: bytes, rng: random.Random) -> bytes:
    """Change a request so that its framing may be wrong."""
    kind = rng.randrange(4)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    head = data.find(b"\r\n\r\n")
    if kind == 1:
        at = data.find(b"\r\n", rng.randrange(max(head, 1))) + 2
        return data[:at] + rng.choice(FRAMING) + data[at:]
    if kind == 2:
        at = rng.randrange(max(head, 1))
        return data[:at] + rng.choice(FRAMING) + data[at + rng.randrange(4) :]
    return _chunked(data, head, rng)


def _chunked(data: bytes, head: int, rng: random.Random) -> bytes:
    lines = [line for line in data[:head].split(b"\r\n") if not line.startswith(b"Content-Length")]
    body, chunks = data[head + 4 :], b""
    while body:
        size = rng.randrange(1, len(body) + 1)
        extension = rng.choice((b"", b"", b";x=y", b";" + b"z" * 300))
        chunks += b"%x%s\r\n%s\r\n" % (size, extension, body[:size])
        body = body[size:]
    end = rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"zz\r\n", b"-1\r\n"))
    return b"\r\n".join(lines) + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end


def _gzipped(body: bytes, rng: random.Random) -> bytes:
    packed = gzip.compress(body, 1, mtime=0)
    kind = rng.randrange(5)
    if kind == 0:
        return changed(packed, packed, rng)
    if kind == 1:
        return packed + rng.choice((packed, b"\0", b"garbage"))
    return packed


def _query(target: str) -> str:
    _, mark, query = target.partition("?")
    return mark + query
