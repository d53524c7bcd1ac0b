"""The resources of a test of stream jobs: its topics, and a folder for its job's checkpoint."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from broker.client import Message, SyncClient
from broker.streams import Job

DEADLINE_S = 90
NUMBERS = itertools.count()


class Bed:
    """A broker, a session, and topics for one test."""

    def __init__(self, spark: SparkSession, client: SyncClient, url: str, folder: Path) -> None:
        self.spark = spark
        self.client = client
        self.url = url
        self.checkpoint = str(folder / "checkpoint")
        self.number = next(NUMBERS)
        self._made: set[str] = set()

    def topic(self, name: str) -> str:
        """Return a topic of this test."""
        topic = f"streams/{name}{self.number}"
        if topic not in self._made:
            self.client.create_topic(topic)
            self._made.add(topic)
        return topic

    def publish(self, name: str, *values: Any) -> None:
        topic = self.topic(name)
        for value in values:
            payload = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.client.publish(topic, [payload])

    def run(self, job: Job) -> None:
        job.run_available(self.spark, checkpoint=self.checkpoint, url=self.url)

    def start(self, job: Job) -> Job:
        return job.start(self.spark, checkpoint=self.checkpoint, url=self.url)

    def messages(self, name: str) -> list[Message]:
        return self.client.poll(self.topic(name))

    def read(self, name: str) -> list[Any]:
        return [json.loads(message.payload) for message in self.messages(name)]

    def sorted(self, name: str) -> list[Any]:
        return sorted(self.read(name), key=json.dumps)

    def taken(self, name: str, count: int, job: Job) -> list[Any]:
        """Return a running job's messages, once there are so many."""
        found: list[Message] = []
        ends = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert job.is_running, job.status
            assert time.monotonic() < ends, f"{len(found)} of {count} messages: {job.status}"
            last = found[-1].id if found else None
            found += self.client.poll(self.topic(name), last, inclusive=False, wait_s=1)
        return [json.loads(message.payload) for message in found]

    def counted(self, job: Job, name: str, count: int) -> None:
        """Wait until a job has counted so many; Spark reports a micro-batch only after its end."""
        ends = time.monotonic() + DEADLINE_S
        while (status := job.status) is None or sum(
            getattr(each, name) for each in status.queries
        ) < count:
            assert time.monotonic() < ends, f"not {count} {name}: {status}"
        assert sum(getattr(each, name) for each in status.queries) == count

    def letters(self, name: str) -> list[tuple[str, str, bytes]]:
        """Return the reason, the operator and the payload of letters, in order of all three."""
        found = self.messages(name)
        known = {(m.headers["reason"], m.headers["operator"], m.payload) for m in found}
        assert len(known) == len(found), f"a letter is there twice: {found}"
        return sorted((reason.decode(), of.decode(), payload) for reason, of, payload in known)
