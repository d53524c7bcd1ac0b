"""A full disk as clients see it: 507 with the outcome of each request; reads go on; later writes resume."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.model import Poll
from broker.storage.leveldb import files
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.wire import avro
from broker.wire.messages import PollDecoder
from tests.kit.serving import Answered, Broker, Http, listening, topic_path

TEXT = {"Content-Type": "text/plain"}
AVRO = {"Content-Type": "avro/binary"}


class Disk:
    """Fails each write of the store and each probe while it is full."""

    is_full = False

    def before_write(self, number: int, when: str) -> None:
        del number
        if when == "before":
            self.check()

    def check(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(files, "probe", lambda directory, size: made.check())
    return made


@pytest.fixture
async def http(tmp_path: Path, disk: Disk) -> AsyncIterator[Http]:
    options = Options(probe_interval_s=0.05)
    table = await open_table(tmp_path, options, fault=disk.before_write)
    logs = Logs(table, SystemClock())
    broker = Broker(stores=(logs, Records(logs.resolver)))
    async with listening(broker) as client:
        yield client
    disk.is_full = False
    await broker.close()
    await table.close()


async def publish(http: Http, text: bytes) -> Answered:
    return await http("POST", topic_path("t", "publish"), text, TEXT)


async def payloads(http: Http) -> list[bytes]:
    reply = await http("POST", topic_path("t", "poll"), avro.encode_poll(Poll()), AVRO)
    assert reply.status == 200
    return [message.payload for message in PollDecoder().feed(reply.body)]


async def test_writing_stops_with_507_reading_goes_on_and_writing_resumes(
    http: Http, disk: Disk
) -> None:
    assert (await http("PUT", topic_path("t"))).status == 200
    assert (await publish(http, b"before")).status == 200
    disk.is_full = True
    first = await asyncio.gather(*(publish(http, b"%d" % number) for number in range(8)))
    assert {(reply.status, reply.headers["Broker-Error"]) for reply in first} == {
        (507, "storage_full")
    }
    outcomes = {reply.headers["Broker-Outcome"] for reply in first}
    assert "unknown" in outcomes
    later = await publish(http, b"later")
    assert (later.status, later.headers["Broker-Outcome"]) == (507, "refused")
    assert later.headers["Retry-After"]
    assert await payloads(http) == [b"before"]
    disk.is_full = False
    async with asyncio.timeout(30):
        while (await publish(http, b"after")).status != 200:
            pass
    found = await payloads(http)
    assert (found[0], found[-1]) == (b"before", b"after")
    assert b"later" not in found
    assert found.count(b"after") == 1
