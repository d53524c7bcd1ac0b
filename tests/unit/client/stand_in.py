"""Stubs of transaction services: Tephra's rules in memory, a foreign service, and the broker's service over HTTP.

A test can cut each call: ``cut["commit"] = ["before", "after"]`` loses the first commit on its way to the service,
and the answer to the second commit.
"""

import base64
import json
from collections import defaultdict
from typing import Any

from broker.client.client_request import ClientRequest, Reply
from broker.errors import BrokerError, RequestError, TransactionConflict, TransactionNotInProgress
from broker.model import POINTER_MAX, Snapshot
from broker.wire import avro, messages
from broker.wire.transaction import encode_snapshot, encode_transaction

LOST = Reply(500, {"broker-error": "outcome_unknown"}, b"lost")


class Rules:
    """The state and the rules of a transaction service. Its calls are synchronous."""

    def __init__(self) -> None:
        self.last = self.read_pointer = 1000
        self.in_progress: dict[int, list[int]] = {}
        """The checkpoint pointers of each transaction."""
        self.invalids: set[int] = set()
        self.committing: dict[int, frozenset[bytes]] = {}
        self.committed: list[tuple[int, frozenset[bytes]]] = []
        self.aborted: list[int] = []

    def start(self, **_: Any) -> Snapshot:
        self.last += 1
        started = self._seen(self.last)
        self.in_progress[self.last] = []
        return started

    def can_commit(self, transaction_id: int, changes: Any = ()) -> None:
        self._check(transaction_id)
        self._check_conflicts(transaction_id, frozenset(changes))
        self.committing[transaction_id] = frozenset(changes)

    def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        self._check(transaction_id)
        changes = self.committing.pop(transaction_id, frozenset())
        self._check_conflicts(transaction_id, changes)
        self.last += 1
        self.committed.append((self.last, changes))
        del self.in_progress[transaction_id]
        self.read_pointer = max(self.read_pointer, write_pointer or transaction_id)

    def abort(self, transaction_id: int) -> None:
        pointers = [transaction_id, *self.in_progress.pop(transaction_id, [])]
        self.invalids -= set(pointers)
        self.aborted.append(transaction_id)
        self.read_pointer = max(self.read_pointer, *pointers)

    def invalidate(self, transaction_id: int) -> bool:
        if transaction_id not in self.in_progress:
            return False
        pointers = [transaction_id, *self.in_progress.pop(transaction_id)]
        self.invalids |= set(pointers)
        self.read_pointer = max(self.read_pointer, *pointers)
        return True

    def checkpoint(self, transaction_id: int) -> Snapshot:
        self._check(transaction_id)
        self.last += 1
        self.in_progress[transaction_id].append(self.last)
        return self._seen(transaction_id, self.last, self.in_progress[transaction_id])

    def snapshot(self) -> Snapshot:
        return self._seen(0)

    def _check(self, transaction_id: int) -> None:
        if transaction_id not in self.in_progress:
            raise TransactionNotInProgress(f"Transaction {transaction_id} is not in progress.")

    def _check_conflicts(self, transaction_id: int, changes: frozenset[bytes]) -> None:
        if any(at > transaction_id and other & changes for at, other in self.committed):
            raise TransactionConflict(f"Transaction {transaction_id} conflicts.")

    def _seen(self, own: int, pointer: int | None = None, checkpoints: Any = ()) -> Snapshot:
        open_ = sorted(
            each
            for begun, further in self.in_progress.items()
            for each in (begun, *further)
            if begun != own
        )
        return Snapshot(
            transaction_id=own,
            read_pointer=self.read_pointer,
            write_pointer=pointer,
            invalids=sorted(self.invalids),
            in_progress=open_,
            first_short_in_progress=min(open_, default=POINTER_MAX),
            checkpoint_pointers=list(checkpoints),
        )


class Foreign:
    """A service of another vendor: for a lost answer it raises an error that is not one of the broker's."""

    lost: type[Exception] = ConnectionError

    def __init__(self) -> None:
        self.rules = Rules()
        self.calls: list[str] = []
        self.cut: dict[str, list[str]] = defaultdict(list)

    async def start(
        self, *, long: bool = False, timeout_s: float | None = None, client: str = ""
    ) -> Snapshot:
        return self._call("start")

    async def can_commit(self, transaction_id: int, changes: Any) -> None:
        self._call("can_commit", transaction_id, changes)

    async def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        self._call("commit", transaction_id, write_pointer)

    async def abort(self, transaction_id: int) -> None:
        self._call("abort", transaction_id)

    async def invalidate(self, transaction_id: int) -> bool:
        return self._call("invalidate", transaction_id)

    async def checkpoint(self, transaction_id: int) -> Snapshot:
        return self._call("checkpoint", transaction_id)

    async def snapshot(self) -> Snapshot:
        return self._call("snapshot")

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        cut = self.cut[name].pop(0) if self.cut[name] else ""
        if cut == "before":
            raise self.lost(f"{name} was lost on its way")
        result = getattr(self.rules, name)(*arguments)
        if cut == "after":
            raise self.lost(f"the answer to {name} was lost")
        return result


class OverHttp:
    """The broker's service as a transport's answers. It passes other requests on to ``others``."""

    def __init__(self, others: Any = None, *, in_json: bool = False) -> None:
        self.rules = Rules()
        self.cut: dict[str, list[Any]] = defaultdict(list)
        """For each call "before" or "after", as for ``Foreign``, or a Reply to send instead of an answer."""
        self.calls: list[str] = []
        self._others = others
        self._in_json = in_json

    def __call__(self, request: ClientRequest) -> Any:
        if not request.path.startswith("/v1/transactions"):
            return self._others(request) if self._others else Reply(200, {}, b"")
        name, arguments = self._read(request)
        self.calls.append(name)
        cut = self.cut[name].pop(0) if self.cut[name] else ""
        if isinstance(cut, Reply | BrokerError):
            return cut
        if cut == "before":
            return Reply(500, {"broker-error": "outcome_unknown"}, b"lost on its way")
        try:
            result = getattr(self.rules, name)(*arguments)
        except RequestError as error:
            return Reply(error.http_status, {"broker-error": error.code}, error.message.encode())
        if cut == "after":
            return Reply(500, {"broker-error": "outcome_unknown"}, b"the answer was lost")
        return self._told(name, result)

    def _read(self, request: ClientRequest) -> tuple[str, list[Any]]:
        body = json.loads(request.body) if request.body else {}
        parts = request.path.split("/")[3:]
        if not parts:
            return "start", []
        if parts == ["snapshot"]:
            return "snapshot", []
        name, pointer = parts[1].replace("-", "_"), int(parts[0])
        if name == "can_commit":
            return name, [pointer, [base64.b64decode(key) for key in body["changes"]]]
        return name, [pointer, int(body["write_pointer"])] if body else [pointer]

    def _told(self, name: str, result: Any) -> Reply:
        if isinstance(result, Snapshot) and not self._in_json:
            headers = {"content-type": "application/x-thrift"}
            return Reply(200, headers, encode_transaction(result))
        told = encode_snapshot(result) if isinstance(result, Snapshot) else {}
        if name == "invalidate":
            told = {"invalidated": result}
        return Reply(200, {"content-type": "application/json"}, json.dumps(told).encode())


class Topics:
    """Takes publishes and stores as a broker does, and loses the answers that ``cut`` names."""

    def __init__(self):
        self.cut = []
        self.published = []
        """Topic, pointer and payloads of each publish; None for the payloads of a reference."""
        self.stored = []
        self.rolled_back = []

    def __call__(self, request):
        action = request.path.split("?")[0].rsplit("/", 1)[1]
        if action == "rollback":
            self.rolled_back.append(request.body)
            return Reply(200, {}, b"")
        if action == "poll":
            return [b"\x00"]
        if request.method == "GET":
            listed = action == "messages"
            body = (
                b'{"messages": [], "next": null}' if listed else b'{"ttl": "60", "generation": "1"}'
            )
            return Reply(200, {}, body)
        cut = self.cut.pop(0) if self.cut else ""
        if isinstance(cut, Reply):
            return cut
        if cut == "before":
            return LOST
        form = avro if request.headers["Content-Type"] == avro.CONTENT_TYPE else messages
        asked = form.decode_publish_request(request.body, messages_max=10**6)
        whole = (request.topic.topic, asked.pointer, list(asked.payloads))
        (self.stored if action == "store" else self.published).append(whole)
        headers = {"content-type": avro.CONTENT_TYPE}
        return LOST if cut == "after" else Reply(200, headers, b"range %d" % len(self.published))
