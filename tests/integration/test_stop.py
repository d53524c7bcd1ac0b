"""SIGTERM under load: acknowledged messages are kept, waiting requests are answered, and the exit code is 0."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from broker.client import BrokerError, Client
from broker.testing.broker_process import BrokerProcess

TOPIC = "ns/stopped"
PUBLISHERS = 8
BEFORE = 400
DEADLINE_S = 60.0

pytestmark = pytest.mark.integration


class Load:
    """Publishers that go on until the broker stops answering."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acknowledged: list[bytes] = []
        self.refused: set[bytes] = set()
        self.enough = asyncio.Event()

    async def publish(self, name: int) -> None:
        number = 0
        while True:
            payload = b"%d.%d" % (name, number)
            number += 1
            try:
                await self._client.publish(TOPIC, payload)
            except BrokerError as error:
                if error.outcome == "refused":
                    self.refused.add(payload)
                return
            self.acknowledged.append(payload)
            if len(self.acknowledged) == BEFORE:
                self.enough.set()


@pytest.mark.parametrize("coalesce", [True, False])
async def test_a_stop_under_load_keeps_what_it_acknowledged(tmp_path: Path, coalesce: bool) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        async with (
            asyncio.timeout(DEADLINE_S),
            Client(broker.url, deadline_s=2.0, coalesce=coalesce) as client,
        ):
            await client.create_topic(TOPIC)
            await client.create_topic("ns/silent")
            load = Load(client)
            waiting = asyncio.create_task(client.poll("ns/silent", wait_s=50))
            publishing = [asyncio.create_task(load.publish(n)) for n in range(PUBLISHERS)]
            await load.enough.wait()
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.gather(*publishing)
            assert await waiting == []
        assert '"level": "error"' not in broker.log()
        broker.start()
        async with Client(broker.url) as client:
            there = [message.payload for message in await client.poll(TOPIC)]
    assert len(there) == len(set(there))
    assert set(load.acknowledged) <= set(there)
    assert not load.refused & set(there)
    for name in range(PUBLISHERS):
        mine = [int(p.split(b".")[1]) for p in there if p.startswith(b"%d." % name)]
        assert mine == list(range(len(mine)))


async def test_a_stop_does_not_wait_for_a_start_that_waits_for_its_servers() -> None:
    """A node whose HBase takes connections and never answers."""
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await reader.read()
        writer.close()

    async with (
        asyncio.timeout(DEADLINE_S),
        await asyncio.start_server(silent, "127.0.0.1") as hbase,
    ):
        here = f"127.0.0.1:{hbase.sockets[0].getsockname()[1]}"
        flags = ("--port", "0", "--zookeeper-hosts", here, "--hbase-gateways", here)
        node = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "broker.cli", "serve", *flags, stdout=asyncio.subprocess.PIPE
        )
        await asked.wait()
        node.send_signal(signal.SIGTERM)
        assert node.stdout is not None
        said = await node.stdout.read()
        assert await node.wait() == 0, "it stops on request"
        assert said == b"", "it does not report that it is ready"
