"""Publish to a node, in the same way as the bare commits beside it.

``python -m benchmarks.cluster.publishes PORT MESSAGES SECONDS TOPIC…`` prints JSON: messages, seconds, and the
nanoseconds of each request. Each topic has a sender: a thread with a connection that waits for one answer after the
other. An event loop in this client would add its wake-ups to the times of only one side.
"""

from __future__ import annotations

import socket
import sys

from benchmarks import prepared
from benchmarks.cluster.threads import measure
from benchmarks.load import HOST

_ANSWER_S = 30.0
_READ_BYTES = 1 << 16
_REQUESTS_BYTES = 1 << 16
"""The size of a sender's prepared requests. A sender has at least two requests. The limit is low: there are many of them."""


class Sender:
    """One topic's publishes, one after the other."""

    def __init__(self, port: int, topic: str, messages: int) -> None:
        """Prepare requests of ``messages`` each, and connect."""
        self._requests = requests(topic, messages)
        self._sent = 0
        self._socket = socket.create_connection((HOST, port), timeout=_ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def publish(self) -> None:
        """Send a request and wait for its answer, which has no body.

        Raises:
            RuntimeError: the answer is not that of a successful publish.
            OSError: there is no answer.
        """
        self._socket.sendall(self._requests[self._sent % len(self._requests)])
        self._sent += 1
        answer = self._socket.recv(_READ_BYTES)
        while b"\r\n\r\n" not in answer and (piece := self._socket.recv(_READ_BYTES)):
            answer += piece
        if answer[9:12] != b"200" or b"ength: 0\r\n" not in answer:
            raise RuntimeError(f"not the answer to a publish: {answer[:300]!r}")


def requests(topic: str, messages: int) -> list[bytes]:
    """Return a few requests; a sender sends them in turn."""
    count = _REQUESTS_BYTES // (messages * prepared.PAYLOAD_BYTES)
    return prepared.publishes(topic, messages=messages, requests=min(16, max(2, count)))


def main(port: int, messages: int, seconds: float, topics: list[str]) -> None:
    """Publish for ``seconds``; exit with 1 if a sender failed."""
    senders = [Sender(port, topic, messages) for topic in topics]
    try:
        measure([sender.publish for sender in senders], messages, seconds)
    finally:
        for sender in senders:
            sender.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
