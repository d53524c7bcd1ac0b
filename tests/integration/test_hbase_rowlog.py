"""A rowlog over a real HBase and ZooKeeper, with processors that are stopped and killed."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import happybase
import pytest

from broker.cli.app import run as run_command
from broker.rowlog import DeadLetter, Message, RowLog, Subscription
from broker.rowlog.candidacy import best_for
from broker.rowlog.execution_state import Part, backoff_ms
from broker.testing.hbase_server import HBaseServer
from chaos.checkers.rowlog import overlaps, violations
from chaos.rowlog_workers import Workers
from tests.kit.servers import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase"), pytest.mark.timeout(120)]

HOST = "127.0.0.1"
SESSION_MS = 2_000


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def pool(hbase_server: HBaseServer) -> Iterator[happybase.ConnectionPool]:
    made = happybase.ConnectionPool(4, host=HOST, port=hbase_server.thrift1_port, timeout=10_000)
    yield made
    for _ in range(4):
        made._queue.get_nowait().close()  # A pool of happybase has no method that closes it.


@pytest.fixture
def table(hbase_server: HBaseServer) -> str:
    name = f"user{secrets.token_hex(4)}"
    connection = happybase.Connection(HOST, hbase_server.thrift1_port)
    connection.create_table(name, {"d": {"max_versions": 1}, "rowlog": {"max_versions": 1}})
    connection.close()
    return name


@pytest.fixture
async def workers(
    hbase_server: HBaseServer, zookeeper: ZooKeeperServer, table: str
) -> AsyncIterator[Workers]:
    made = Workers(
        {
            "thrift1": hbase_server.thrift1_port,
            "zookeeper": [zookeeper.hosts],
            "table": table,
            "id": f"mq{secrets.token_hex(4)}",
            "subscriptions": ["a", "b"],
            "session_timeout_ms": SESSION_MS,
            "fails": 0.1,
        }
    )
    yield made
    await made.close()


async def test_processors_that_are_stopped_and_killed_lose_nothing_and_keep_order(
    workers: Workers, pool: happybase.ConnectionPool, table: str, zookeeper: ZooKeeperServer
) -> None:
    names = ["a", "b"]
    log = RowLog(
        pool,
        table,
        id=workers.given["id"],
        zookeeper=[zookeeper.hosts],
        session_timeout_ms=SESSION_MS,
        threads=4,
    )
    async with log:
        for name in names:
            await log.subscribe(Subscription(name, max_tries=0, backoff_ms_first=50))
        await workers.start("one")
        await workers.until(lambda: workers.leader == "one")
        await workers.start("two")

        async def put_some() -> None:
            for row in (b"r1", b"r2", b"r3"):
                for _ in range(4):
                    workers.note_put(await log.put(row, {b"d:x": b"1"}, b"payload"))

        await put_some()
        await workers.until(lambda: any(each.kind == "end" for each in workers.history))
        workers.signal("one", signal.SIGSTOP)
        await put_some()
        stopped_at = time.monotonic()
        await workers.until(lambda: workers.leader == "two")
        assert time.monotonic() - stopped_at < SESSION_MS / 1000 + 10, "it takes over at all"
        await workers.until(
            lambda: any(each.process == "two" and each.kind == "end" for each in workers.history)
        )
        workers.signal("one", signal.SIGCONT)
        await put_some()
        workers.leader = ""
        workers.signal("two", signal.SIGKILL)
        await put_some()
        await workers.until(lambda: workers.leader == "one")
        await workers.until(lambda: workers.is_done(names))
        assert violations(workers.history, names) == []


class Spread:
    """A rowlog whose subscriptions are spread over worker processes, and its writer."""

    def __init__(self, log: RowLog, workers: Workers) -> None:
        """Use both."""
        self.log = log
        self.workers = workers
        self.names: list[str] = workers.given["subscriptions"]
        self.rows = [b"r1", b"r2", b"r3"]

    async def put(self, count: int = 2) -> None:
        """Put messages into each row."""
        for row in self.rows:
            for _ in range(count):
                self.workers.note_put(await self.log.put(row, {b"d:x": b"1"}, b"payload"))

    def takers(self, since: int = 0) -> dict[str, str]:
        """Return which process was called last for each subscription, in lines from ``since`` on."""
        lines = self.workers.history[since:]
        return {each.subscription: each.process for each in lines if each.kind == "begin"}

    async def until_taken_by(self, processes: list[str]) -> None:
        """Put until each subscription is processed by the one of these that is best for it.

        The processes are named in the order of their instances.
        """
        best = {name: best_for(name, range(len(processes))) for name in self.names}
        wanted = {name: processes[number] for name, number in best.items() if number is not None}
        while self.takers() != wanted:
            await self.put(1)
            await self.workers.until(lambda: self.workers.is_done(self.names))

    async def until_done(self) -> None:
        """Wait until all is done, and judge."""
        await self.workers.until(lambda: self.workers.is_done(self.names))
        assert violations(self.workers.history, self.names) == []
        assert overlaps(self.workers.history) == []


@pytest.fixture
async def spread(
    workers: Workers, pool: happybase.ConnectionPool, table: str, zookeeper: ZooKeeperServer
) -> AsyncIterator[Spread]:
    workers.given |= {"subscriptions": [f"s{each}" for each in range(6)], "takes_s": 0.02}
    made = RowLog(
        pool,
        table,
        id=workers.given["id"],
        zookeeper=[zookeeper.hosts],
        session_timeout_ms=SESSION_MS,
        threads=4,
        settings={"spread": True},
    )
    async with made as log:
        for name in workers.given["subscriptions"]:
            await log.subscribe(Subscription(name, max_tries=0, backoff_ms_first=50))
        yield Spread(log, workers)


async def test_spread_subscriptions_have_one_process_each_and_pass_from_a_killed_one(
    spread: Spread,
) -> None:
    workers = spread.workers
    for name in ("one", "two"):
        await workers.start(name)
        await workers.until(lambda name=name: name in workers.ready)  # type: ignore[misc]
    await spread.until_taken_by(["one", "two"])
    begun = len(workers.history)
    await spread.put()
    await workers.until(lambda: "two" in spread.takers(begun).values())
    workers.signal("two", signal.SIGKILL)
    killed = len(workers.history)
    await spread.put()
    await workers.until(lambda: spread.takers(killed) == dict.fromkeys(spread.names, "one"))
    await spread.until_done()


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_spread_subscriptions_pass_from_one_to_another_many_times(spread: Spread) -> None:
    """Three processes: killed and started again, stopped and gone on with, one after the other."""
    workers, names = spread.workers, ["one", "two", "three"]
    for name in names:
        await workers.start(name)
        await workers.until(lambda name=name: name in workers.ready)  # type: ignore[misc]
    await spread.until_taken_by(names)
    for number in range(12):
        victim, is_kill = names[number % 3], number % 2 == 0
        begun = len(workers.history)
        await spread.put()
        await workers.until(lambda: victim in spread.takers(begun).values())  # noqa: B023
        workers.signal(victim, signal.SIGKILL if is_kill else signal.SIGSTOP)
        broken = len(workers.history)
        await spread.put()

        def is_taken() -> bool:
            takers = spread.takers(broken)  # noqa: B023
            return takers.keys() == set(spread.names) and victim not in takers.values()  # noqa: B023

        await workers.until(is_taken)
        if is_kill:
            workers.ready.discard(victim)
            await workers.start(victim)
            await workers.until(lambda: victim in workers.ready)  # noqa: B023
        else:
            workers.signal(victim, signal.SIGCONT)
        while victim not in spread.takers(broken).values():
            await spread.put(1)
            await workers.until(lambda: workers.is_done(spread.names))
    await spread.until_done()


async def test_a_listener_in_another_process_is_killed_started_again_and_gets_all_in_order(
    workers: Workers, pool: happybase.ConnectionPool, table: str, zookeeper: ZooKeeperServer
) -> None:
    """This process puts and processes; the listeners are in the other, which a kill hits while it has two messages."""
    workers.given |= {"subscriptions": ["a"], "serves": True, "fails": 0.0, "fails_rows": "bad"}
    subscription = Subscription("a", max_tries=3, backoff_ms_first=200)
    log = RowLog(
        pool,
        table,
        id=workers.given["id"],
        zookeeper=[zookeeper.hosts],
        session_timeout_ms=SESSION_MS,
        threads=4,
    )

    def seqs(row: str, kind: str = "begin") -> list[int]:
        return [each.seq for each in workers.history if (each.row, each.kind) == (row, kind)]

    async with log:
        await log.subscribe(subscription)
        await workers.start("far", takes_s=1e6)
        await workers.until(lambda: "far" in workers.ready)
        await log.start(remote=True)
        for row in (b"r1", b"r2"):
            for _ in range(3):
                workers.note_put(await log.put(row, {b"d:x": b"1"}, b"payload"))
        await workers.until(lambda: seqs("r1") == seqs("r2") == [1])
        workers.signal("far", signal.SIGKILL)
        for row in (b"r1", b"r2"):
            part = await until_tried(log, row)
            assert "gave no answer" in part.reason, part
        await workers.start("far", takes_s=0.01)
        await workers.until(lambda: workers.is_done(["a"]))
        assert seqs("r1") == seqs("r2") == [1, 1, 2, 3]
        assert violations(workers.history, ["a"]) == []

        for _ in range(2):
            await log.put(b"bad", payload=b"payload")
        letters: list[DeadLetter] = []
        async with asyncio.timeout(30):
            while len(letters) < 2:
                letters = await log.dead("a")
        assert [(each.message.seq, each.tries) for each in letters] == [(1, 3), (2, 3)]
        await workers.until(lambda: len(seqs("bad", "end")) == 6)
        assert seqs("bad") == [1, 1, 1, 2, 2, 2]
        calls = [each for each in workers.history if each.row == "bad"]
        waits = [(begin.time_ns - end.time_ns) / 1e6 for end, begin in pairwise(calls)][1::2]
        least = [backoff_ms(subscription, tries) / 2 for tries in (1, 2)]
        assert [wait + 1 >= each for wait, each in zip(waits[:2], least, strict=True)] == [True] * 2


async def until_tried(log: RowLog, row: bytes) -> Part:
    """Wait until the first message of a row was tried, and return its part."""
    async with asyncio.timeout(30):
        while True:
            part = (await log.messages.open(row))[0].state.parts["a"]
            if part.tries and not part.token:
                return part


async def test_a_lone_process_puts_processes_and_removes(
    pool: happybase.ConnectionPool, table: str
) -> None:
    """Through Thrift-1, without ZooKeeper: one process."""
    await alone(RowLog(pool, table, id=f"mq{secrets.token_hex(4)}", threads=4), table)


async def test_a_lone_process_puts_processes_and_removes_with_each_write_on_disk(
    hbase_server: HBaseServer, table: str
) -> None:
    gateway = [f"{HOST}:{hbase_server.thrift2_port}"]
    log = RowLog(
        None, table, id=f"mq{secrets.token_hex(4)}", synced=True, thrift2=gateway, shards=4
    )
    await alone(log, table)


async def alone(log: RowLog, table: str) -> None:
    fails = [True]
    heard: asyncio.Queue[Message] = asyncio.Queue()

    async def listen(message: Message) -> bool:
        heard.put_nowait(message)
        return not (fails and fails.pop())

    async with log:
        await log.subscribe(Subscription("a", backoff_ms_first=50))
        log.listen("a", listen)
        await log.start()
        for number in range(5):
            await log.put(b"row\x00'", {b"d:x": b"%d" % number}, b"p%d" % number, data=b"\xffd")
        async with asyncio.timeout(30):
            got = [await heard.get() for _ in range(6)]
        assert [each.seq for each in got] == [1, 1, 2, 3, 4, 5]
        assert (got[-1].payload, got[-1].data) == (b"p4", b"\xffd")
        message = await log.put(b"other", payload=b"x")
        assert message is not None
        async with asyncio.timeout(30):
            await heard.get()
        cells = {}
        async with asyncio.timeout(30):
            while [name for name in cells if len(name) == 25] or not cells:
                cells = (await log.rows.get(table.encode(), [b"other"], [b"rowlog:"]))[b"other"]
        await log.index.flush()
        report = await log.verify()
        assert (report.messages, report.without_entry, report.stale) == (0, 0, 0)


@pytest.fixture
def command(
    hbase_server: HBaseServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("ROWLOG_HBASE", f"{HOST}:{hbase_server.thrift1_port}")

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run_command(["rowlog", *words])
        return int(ended.value.code or 0), capsys.readouterr().out.rstrip("\n")

    return run


def test_the_commands_show_put_process_revive_drop_and_verify(
    command: Callable[..., tuple[int, str]],
    pool: happybase.ConnectionPool,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"mq{secrets.token_hex(4)}"

    async def make() -> None:
        async with RowLog(pool, table, id=name, threads=4):
            pass

    asyncio.run(make())
    command("list")
    module = f"listeners{secrets.token_hex(4)}"
    (tmp_path / f"{module}.py").write_text(
        "async def fails(message):\n    raise ValueError('not ' + message.payload.decode())\n"
        "async def works(message):\n    print('got', message.seq)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert name in [each["id"] for each in json.loads(command("list", "--json")[1])]
    code, out = command("subscriptions", name, "--add", "index", "--max-tries", "1", "--json")
    assert (code, json.loads(out)[0]["max_tries"]) == (0, 1)
    for row in ("user/1", "user/2"):
        assert command("put", name, row, "--cell", "d:x=1", "--payload", "good")[0] == 0
    (shown,) = json.loads(command("show", name, "user/1", "--json")[1])
    assert (shown["payload"], shown["subscriptions"]["index"]["standing"]) == ("good", "open")
    assert json.loads(command("show", name, "--json")[1])["depths"][0]["open"] == 2
    assert command("process", name, "--listener", f"index={module}:fails", "--once")[0] == 0
    letters = json.loads(command("dead", name, "index", "--json")[1])
    assert [each["reason"] for each in letters] == ["ValueError: not good"] * 2
    assert command("dead", name, "index", "--drop", "user/1:1") == (0, "dropped user/1:1")
    assert command("retry", name, "index", "--all") == (0, "revived user/2:1")
    code, out = command("process", name, "--listener", f"index={module}:works", "--once")
    assert (code, out.splitlines()[-1]) == (0, "got 1")
    assert command("subscriptions", name, "--pause", "index")[0] == 0
    assert command("verify", name, "--mend")[0] == 0
    assert command("verify", name)[0] == 0
    assert command("retry", name, "index", "user/9:9")[0] == 1
    assert command("show", "nothing")[0] != 0


def test_lilys_repository_runs_over_hbase(
    hbase_server: HBaseServer, zookeeper: ZooKeeperServer
) -> None:
    where = ("--hbase", f"{HOST}:{hbase_server.thrift1_port}", "--zookeeper", zookeeper.hosts)
    done = subprocess.run(
        (sys.executable, "-W", "ignore::ResourceWarning", "-m", "examples.rowlog", *where),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "search for 'queue': ['rowlog']" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("faults", "minutes"),
    [("kill,pause,gateway,region-server,zookeeper-leader", 3), ("region-move", 1)],
    ids=["processes-are-killed", "regions-move"],
)
def test_while_hbase_and_processors_are_broken_nothing_is_lost_and_order_is_kept(
    tmp_path: Path, faults: str, minutes: int
) -> None:
    words = ("--workload", "rowlog", "--hbase", "distributed", "--nodes", "1", "--json")
    command = (sys.executable, "-m", "chaos", "run", *words, "--nemesis", faults)
    done = subprocess.run(
        (*command, "--minutes", str(minutes), "--dir", str(tmp_path)),
        check=False,
        capture_output=True,
        text=True,
        timeout=800,
    )
    told = json.loads(done.stdout)
    assert told["verdict"] == "valid", told
    assert all(each["happened"] for each in told["faults"].values()), told["faults"]
    # There are two region servers. After one of them was emptied, another move moves every region.
    moves = told["faults"].get("region-move", {"times": 2})
    assert moves["times"] >= 2, told["faults"]
