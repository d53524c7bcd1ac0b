"""CDAP's own Java client, unmodified, driven from Python: one JVM, one line per call.

The JVM runs the main class ``TmsClient`` of ``tests/java/tms``, which documents the lines. One client can call many
servers: ``at`` returns the calls for one address and namespace. An exception of the Java client becomes a
``JavaError`` with the name of its class.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from broker.local.servers import jvm
from broker.local.servers.process import HOST, start_child, tied_to_us
from broker.testing.server_process import Child

_STOP_TIMEOUT_S = 10.0
_ACCESS = jvm.opens("java.lang")


class JavaError(Exception):
    """An exception of the Java client.

    Attributes:
        java_class: The full name of the exception's class.
        simple_name: The class name without its package, such as ``TopicNotFoundException``.
    """

    def __init__(self, java_class: str, message: str) -> None:
        super().__init__(f"{java_class}: {message}")
        self.java_class = java_class
        self.simple_name = java_class.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class RollbackHandle:
    """A publish that can be rolled back; the server's bytes stay in the JVM under ``handle``."""

    handle: int
    write_pointer: int
    start_timestamp: int
    start_sequence_id: int
    end_timestamp: int
    end_sequence_id: int


class JavaClient(Child):
    """The JVM with the client in it; a context manager, usable from several threads in turn.

    Args:
        log_path: The file for its standard error; without it, the output is discarded.
        jvm_options: Heap and compiler.
    """

    name = "the Java client"
    project: ClassVar[str] = "tms"
    """Its folder in ``tests/java``, and the name of its recipe."""
    main: ClassVar[str] = "TmsClient"

    def __init__(
        self,
        *,
        log_path: Path | None = None,
        jvm_options: Sequence[str] = (*jvm.QUICK, "-Xmx256m"),
    ) -> None:
        self._log_path = log_path or Path("/dev/null")
        self._jvm_options = tuple(jvm_options)
        self._turn = threading.Lock()

    @override
    def start(self) -> None:
        """Start the JVM.

        Raises:
            ServerMissing: Java is not installed or the client not fetched.
        """
        class_path = jvm.class_path(jvm.installed(self.project))
        command = [jvm.java(), *_ACCESS, *self._jvm_options, "-cp", class_path, self.main]
        with self._log_path.open("ab") as log:
            self._process = start_child(
                tied_to_us(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    @override
    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    @override
    def close(self) -> None:
        """Close the input, which ends the JVM, and wait for its end; kill it if it does not end."""
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def at(self, port: int, *, host: str = HOST, namespace: str = "default") -> JavaTopics:
        """Return the client's calls for one server and namespace."""
        return JavaTopics(self, host, port, namespace)

    def call(self, command: Mapping[str, Any]) -> Any:
        """Send one line and return the result of the call.

        Raises:
            JavaError: The Java client threw.
            EOFError: The JVM ended.
        """
        with self._turn:
            assert self._process is not None, f"{self.name} was never started"
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"the JVM of {self.name} ended; see {self._log_path}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"]["class"], answer["error"]["message"])
        return answer.get("ok")


@dataclass(frozen=True, slots=True)
class JavaTopics:
    """The calls of CDAP's messaging interface, for one server and namespace.

    Each raises ``JavaError`` with the name of the Java exception.
    """

    client: JavaClient
    host: str
    port: int
    namespace: str

    def create(self, topic: str, **properties: str) -> None:
        """Create a topic with properties, such as ``ttl="60"``."""
        self._call("create", topic, properties=properties)

    def update(self, topic: str, **properties: str) -> None:
        """Replace a topic's properties."""
        self._call("update", topic, properties=properties)

    def get(self, topic: str) -> dict[str, str]:
        """Return a topic's properties, including its generation and ttl."""
        found: dict[str, str] = self._call("get", topic)
        return found

    def list(self) -> Sequence[str]:
        """Return the namespace's topics in the server's order."""
        names: Sequence[str] = self._call("list", "")
        return names

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._call("delete", topic)

    def publish(
        self, topic: str, *messages: bytes, write_pointer: int | None = None
    ) -> RollbackHandle | None:
        """Publish messages. With a write pointer and no messages, publish a reference to the stored messages."""
        detail = self._send("publish", topic, messages, write_pointer)
        return None if detail is None else RollbackHandle(**detail)

    def store(self, topic: str, *messages: bytes, write_pointer: int) -> None:
        """Store payloads of a transaction."""
        self._send("store", topic, messages, write_pointer)

    def rollback(self, topic: str, published: RollbackHandle) -> None:
        """Roll back a transactional publish: send back the bytes of its answer."""
        self._call("rollback", topic, handle=published.handle)

    def fetch(
        self,
        topic: str,
        *,
        start: bytes | int | None = None,
        inclusive: bool = True,
        limit: int | None = None,
        transaction: bytes | Mapping[str, Any] | None = None,
        take: int | None = None,
    ) -> Sequence[tuple[bytes, bytes]]:
        """Fetch messages as pairs of id and payload.

        Args:
            topic: The topic's name.
            start: A message id (bytes), a time in ms (int), or None for the oldest message.
            inclusive: True to include the message with the start id.
            limit: The most messages to fetch; without it, all.
            transaction: Its encoded bytes, or the fields ``read_pointer``, ``transaction_id``,
                ``invalids``, ``in_progress`` and ``first_short``.
            take: The number of messages after which the iterator is closed, even if there are more.
        """
        found = self._call(
            "fetch",
            topic,
            start_id=start.hex() if isinstance(start, bytes) else None,
            start_time=start if isinstance(start, int) else None,
            inclusive=inclusive,
            limit=limit,
            transaction=transaction.hex() if isinstance(transaction, bytes) else transaction,
            take=take,
        )
        return [
            (bytes.fromhex(message_id), bytes.fromhex(payload)) for message_id, payload in found
        ]

    def _send(
        self, op: str, topic: str, messages: Sequence[bytes], write_pointer: int | None
    ) -> Any:
        digits = [message.hex() for message in messages]
        return self._call(op, topic, messages=digits, write_pointer=write_pointer)

    def _call(self, op: str, topic: str, **fields: Any) -> Any:
        where = {"host": self.host, "port": self.port, "namespace": self.namespace, "topic": topic}
        return self.client.call({"op": op, **where, **fields})
