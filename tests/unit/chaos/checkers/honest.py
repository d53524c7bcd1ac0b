"""Correct histories: a log that keeps its promises, and clients that record the truth.

A random generator chooses the next process, the moment at which a request is done, and the lost answers. Rows
get ids in the order in which they are done.
"""

import random
from dataclasses import dataclass, field

from chaos.history import Ending, Event, History
from tests.kit.story import rid, snapshot

TOPIC = "ns:t"
TTL_S = 1000


@dataclass
class Row:
    id: str
    payload: str
    pointer: int | None


@dataclass
class Publish:
    ending: Ending
    payloads: list[str]
    pointer: int | None
    is_certain: bool = True
    first: str = ""
    last: str = ""


@dataclass
class Transaction:
    pointer: int
    published: list[Publish] = field(default_factory=list)


class HonestWorld:
    """One topic, three nodes (two of them may lag), publishers, transactions and readers."""

    def __init__(self, seed: int, steps: int) -> None:
        self.chance = random.Random(seed)
        self.history = History(lambda: len(self.history.events) * 1_000_000)
        self.rows: list[Row] = []
        self.epoch = 1
        self.next_row = 1
        self.next_pointer = 1
        self.next_payload = 0
        self.lives: dict[str, int] = {}
        self.in_flight: dict[str, Publish] = {}
        self.open: dict[str, Transaction] = {}
        self.invalids: list[int] = []
        self.committed = 0
        self.cursors: dict[str, str] = {}
        self.history.invoke("owner", "create", TOPIC, {"generation": 1, "ttl_s": TTL_S}).ok({})
        for _ in range(steps):
            self._step()
        self._finish()

    @property
    def events(self) -> list[Event]:
        return self.history.events

    def _step(self) -> None:
        acts = [self._publisher] * 6 + [self._transaction] * 3
        acts += [self._consumer] * 4 + [self._timed, self._backward, self._snapshot, self._leader]
        self.chance.choice(acts)()

    # Publishing.

    def _publisher(self) -> None:
        name = f"p{self.chance.randrange(4)}"
        if name in self.in_flight:
            self._answer(name, self.in_flight.pop(name))
        else:
            self.in_flight[name] = self._ask(name, None)

    def _ask(self, name: str, pointer: int | None) -> Publish:
        payloads = [f"m{self.next_payload + n}" for n in range(self.chance.choice((1, 1, 2, 4)))]
        self.next_payload += len(payloads)
        asked = {"payloads": payloads, "pointer": pointer, "generation": 1}
        process = f"{name}+{self.lives.get(name, 0)}"
        return Publish(self.history.invoke(process, "publish", TOPIC, asked), payloads, pointer)

    def _store(self, publish: Publish) -> None:
        ids = [rid(self.next_row + n) for n in range(len(publish.payloads))]
        self.next_row += len(ids) + self.chance.choice((0, 0, 3))
        pairs = zip(ids, publish.payloads, strict=True)
        self.rows += [Row(row, payload, publish.pointer) for row, payload in pairs]
        publish.first, publish.last = ids[0], ids[-1]

    def _answer(self, name: str, publish: Publish) -> None:
        ending, draw = publish.ending, self.chance.random()
        ending.node, ending.epoch = "n", self.epoch
        if draw < 0.1:
            ending.fail("refused")
            return
        publish.is_certain = draw >= 0.2
        if publish.is_certain or draw < 0.15:
            self._store(publish)
        if not publish.is_certain:
            ending.unknown("no answer")
            self.lives[name] = self.lives.get(name, 0) + 1
        elif self.chance.random() < 0.5:
            ending.ok({"last": publish.last}, publish.first)
        else:
            ending.ok({}, "")

    def _leader(self) -> None:
        # The new leader answers the requests in flight.
        self.epoch += 1

    # Transactions.

    def _transaction(self) -> None:
        name = f"t{self.chance.randrange(2)}"
        transaction = self.open.get(name)
        if transaction is None:
            self.open[name] = Transaction(self.next_pointer)
            value = {"pointer": self.next_pointer, "snapshot": self._view()}
            self.history.invoke(name, "begin", "", {}).ok(value)
            self.next_pointer += 1
        elif self.chance.random() < 0.6:
            publish = self._ask(name, transaction.pointer)
            self._answer(name, publish)
            if publish.first or not publish.is_certain:
                transaction.published.append(publish)
        else:
            self._decide(name, self.open.pop(name))

    def _decide(self, name: str, transaction: Transaction) -> None:
        pointer = transaction.pointer
        if not all(publish.is_certain for publish in transaction.published):
            self.invalids.append(pointer)
            self.history.invoke(name, "invalidate", "", {"pointer": pointer}).ok({})
        elif self.chance.random() < 0.6:
            self.history.invoke(name, "commit", "", {"pointer": pointer}).ok({})
        else:
            for publish in transaction.published:
                self._roll_back(name, publish)
            self.history.invoke(name, "abort", "", {"pointer": pointer}).ok({})

    def _roll_back(self, name: str, publish: Publish) -> None:
        asked = {"pointer": publish.pointer, "first": publish.first, "last": publish.last}
        ending = self.history.invoke(name, "rollback", TOPIC, {**asked, "generation": 1})
        for row in self.rows:
            if publish.first <= row.id <= publish.last and row.pointer == publish.pointer:
                row.pointer = -row.pointer
        ending.ok({})

    def _view(self, own: int = 0) -> dict:
        in_progress = sorted(transaction.pointer for transaction in self.open.values())
        top = self.next_pointer - 1
        return snapshot(top, invalids=self.invalids, in_progress=in_progress, own=own)

    # Reading. A node may lag by some rows.

    def _known(self, node: str) -> list[Row]:
        behind = 0 if node == "one" else self.chance.choice((0, 0, 1, 3))
        return self.rows[: len(self.rows) - behind]

    def _read(self, process: str, rows: list[Row], node: str, **asked) -> None:
        shown = [
            [row.id, row.payload, (asked.get("view") == "all" and row.pointer) or None]
            for row in rows
        ]
        ending = self.history.invoke(process, "read", TOPIC, {"generation": 1, "at_ms": 1, **asked})
        ending.node = node
        ending.ok({"rows": shown})

    def _consumer(self) -> None:
        name, node = f"c{self.chance.randrange(3)}", self.chance.choice(("one", "two", "three"))
        after, limit = self.cursors.get(name, ""), self.chance.randint(1, 5)
        page = [row for row in self._known(node) if row.id > after][:limit]
        self._read(name, page, node, after=after, limit=limit, cursor=name, view="messages")
        if page:
            self.cursors[name] = page[-1].id

    def _timed(self) -> None:
        time_ms = self.chance.choice((0, 0, 1))
        page = [row for row in self._known("two") if int(row.id, 16) >> 16 >= time_ms]
        self._read("timed", page, "two", time=time_ms, view="messages")

    def _backward(self) -> None:
        through = rid(self.chance.randint(1, self.next_row + 5))
        page = [row for row in reversed(self._known("two")) if row.id <= through][:4]
        self._read("browser", page, "two", through=through, reverse=True, view="all")

    def _visible(self, rows: list[Row], view: dict) -> list[Row]:
        shown = []
        for row in rows:
            if row.pointer in view["in_progress"]:
                break
            if row.pointer is None or (row.pointer > 0 and row.pointer not in view["invalids"]):
                shown.append(row)
        return shown

    def _snapshot(self) -> None:
        view = self._view()
        page = self._visible(self._known("three"), view)[: self.chance.randint(1, 100)]
        self._read("in a transaction", page, "three", snapshot=view, view="messages")

    def _finish(self) -> None:
        for name, publish in self.in_flight.items():
            self._answer(name, publish)
        for name in list(self.open):
            self._decide(name, self.open.pop(name))
        self._answer("last", self._ask("last", None))
        view = self._view()
        for process in ("final", "final@one", "final@two"):
            self._read(process, self.rows, process, view="all")
            self._read(
                process, self._visible(self.rows, view), process, snapshot=view, view="messages"
            )
