"""A program that publishes one small message after the other, and prints the result of each publish.

It represents all correct clients while another client attacks the broker. It is its own process with a blocking
socket, so that the rest of a test slows it as little as possible::

    python -m tests.kit.neighbour PORT

It writes one line for each publish to standard output: its start by the monotonic clock, which all processes of a
machine share; its duration; both in seconds; and the reply's status, 0 if the connection was cut.
The payload of the first publish is ``0``, of the second ``1``, and so on.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import NamedTuple

from broker.model import PublishRequest
from broker.wire import avro
from tests.kit.serving import topic_path

TOPIC = "neighbour"
CUT = 0
SILENCE_S = 60.0
"""Longer than any broker may take to answer."""


class Published(NamedTuple):
    """The result of one publish; times are in seconds of the monotonic clock."""

    began_s: float
    took_s: float
    status: int

    @classmethod
    def of(cls, line: bytes) -> Published:
        """Read a line that ``main`` wrote."""
        began, took, status = line.split()
        return cls(float(began), float(took), int(status))

    @property
    def ended_s(self) -> float:
        """The time of the reply."""
        return self.began_s + self.took_s


def request(payload: bytes) -> bytes:
    """Return the bytes of a publish of one message."""
    body = avro.encode_publish_request(PublishRequest(None, [payload]))
    return (
        f"POST {topic_path(TOPIC, 'publish')} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: avro/binary\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def status_of(sock: socket.socket) -> int:
    """Read one reply and return its status; CUT if the connection ended before that."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        more = sock.recv(65536)
        if not more:
            return CUT
        reply += more
    head, _, body = reply.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].partition(b":")[2]) - len(body) if lengths else 0
    while missing > 0:
        more = sock.recv(missing)
        if not more:
            return CUT
        missing -= len(more)
    return int(head.split(b" ", 2)[1])


def main() -> None:
    """Publish until the reader of standard output is gone."""
    port, number = int(sys.argv[1]), 0
    while True:
        with socket.create_connection(("127.0.0.1", port), SILENCE_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            status = 200
            while status == 200:
                data = request(b"%d" % number)
                began = time.monotonic()
                try:
                    sock.sendall(data)
                    status = status_of(sock)
                except OSError:
                    status = CUT
                took = time.monotonic() - began
                sys.stdout.write(f"{began:.6f} {took:.6f} {status}\n")
                sys.stdout.flush()
                number += 1


if __name__ == "__main__":
    main()
