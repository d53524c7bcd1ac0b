"""Programs that are killed at any of their steps: a transaction with a SQL database, its recovery, a relay.

Each program runs in its own process, forked from one that has imported all modules. Steps are the moments before and after
a call of the transaction service, a call of a participant, a write to the broker, and a SQL commit. A program that
reaches its end writes the names of its steps to a file.
"""

import asyncio
import functools
import inspect
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Column, MetaData, String, Table, create_engine, event, insert
from sqlalchemy.orm import Session
from typing_extensions import override

from broker.client import Client
from broker.client.client_request import ClientRequest, Reply
from broker.client.transport import HttpTransport
from broker.client.values import Settings
from broker.sql import Outbox, SqlRecord
from tests.kit.fork_server import CONTEXT, preload

TOPIC = "victims/t"
TRANSACTIONS = "/v1/transactions"
METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("name", String(80), primary_key=True))
RECORD = SqlRecord(METADATA)
OUTBOX = Outbox(METADATA, batch_messages_max=2)

preload(__name__)

Program = Callable[[str, Path, str, "Steps"], Any]


class Steps:
    """Counts the steps of a program, and kills it at one of them."""

    def __init__(self, kill_at: str) -> None:
        self.seen: list[str] = []
        self._counts: Counter[str] = Counter()
        self._kill_at = kill_at

    def step(self, name: str) -> None:
        self._counts[name] += 1
        label = f"{name} {self._counts[name]}"
        self.seen.append(label)
        if label == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call with a step before and after it."""

        async def waiting(*arguments: Any, **named: Any) -> Any:
            self.step(f"before {name}")
            result = await call(*arguments, **named)
            self.step(f"behind {name}")
            return result

        def plain(*arguments: Any, **named: Any) -> Any:
            self.step(f"before {name}")
            result = call(*arguments, **named)
            self.step(f"behind {name}")
            return result

        wrapper = waiting if inspect.iscoroutinefunction(call) else plain
        return functools.wraps(call)(wrapper)

    def wrap(self, wrapped: Any, *names: str) -> Any:
        """Make methods of an object steps."""
        for name in names:
            setattr(wrapped, name, self.around(name, getattr(wrapped, name)))
        return wrapped

    def engine(self, path: Path) -> Any:
        engine = create_engine(f"sqlite:///{path}")
        event.listen(engine, "commit", lambda _: self.step("before a SQL commit"))
        return engine

    def client(self, url: str) -> Client:
        """Return a client whose writes are steps."""
        settings = Settings(url=url)
        return Client(settings=settings, transport=_Stepping(settings, self))


class _Stepping(HttpTransport):
    """Sends writes as steps: ``write``, or the last part of the path of a call of the transaction service."""

    def __init__(self, settings: Settings, steps: Steps) -> None:
        super().__init__(settings, None)
        self._steps = steps

    @override
    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        name = "write"
        if request.path.startswith(TRANSACTIONS):
            name = request.path.removeprefix(TRANSACTIONS).rpartition("/")[2] or "start"
        reply: Reply = await self._steps.around(name, super().send)(request, timeout_s)
        return reply


async def transact(url: str, path: Path, name: str, steps: Steps) -> None:
    """Write a row, and publish two messages of its name, in one transaction."""
    engine = steps.engine(path)
    async with steps.client(url) as client:
        with Session(engine) as session:
            participant = steps.wrap(
                RECORD.participant(session), "start_tx", "commit_tx", "decide_tx", "post_commit"
            )
            async with client.transaction(aware=[participant]) as tx:
                session.execute(insert(ORDERS), [{"name": name}])
                await tx.publish(TOPIC, [f"{name} 1", f"{name} 2"], key=name)


async def recover(url: str, path: Path, name: str, steps: Steps) -> None:
    """Recover: finish the transactions of all records in the broker."""
    async with steps.client(url) as client:
        await RECORD.recover(client, steps.engine(path))


async def relay(url: str, path: Path, name: str, steps: Steps) -> None:
    """Relay the messages of the outbox."""
    async with steps.client(url) as client:
        await OUTBOX.relay_all(client, steps.engine(path))


def _run(program: Program, url: str, path: Path, name: str, kill_at: str) -> None:
    steps = Steps(kill_at)
    asyncio.run(program(url, path, name, steps))
    path.with_name("steps").write_text("\n".join(steps.seen))


def run(program: Program, url: str, path: Path, name: str, kill_at: str = "") -> int | None:
    """Run a program in its own process, and return its exit code."""
    process = CONTEXT.Process(target=_run, args=(program, url, path, name, kill_at))
    process.start()
    process.join(60)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


def steps_of(path: Path) -> list[str]:
    """Return the steps of the last program that reached its end."""
    return path.with_name("steps").read_text().splitlines()
