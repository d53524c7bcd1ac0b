"""Run one example: make its topics, publish its sample, run its job, and read the job's output."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from pyspark.sql import SparkSession

from broker.client import Message, SyncClient
from broker.streams import Job, graph

BESIDE = {"__init__", "__main__", "running", "samples"}
NAMES = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in BESIDE)


class Example(Protocol):
    """A module of this folder."""

    job: Callable[[], Job]
    publish: Callable[[SyncClient], None]


def example(name: str) -> Example:
    """Return an example by its name."""
    return cast("Example", import_module(f"examples.streams.{name}"))


def topics(job: Job) -> tuple[list[str], list[str]]:
    """Return the topics that a job reads, and those that it publishes to."""
    operators = job.graph.operators()
    read = [each.topic for each in operators if isinstance(each, graph.Source)]
    written = [each.topic for each in operators if isinstance(each, graph.Sink)]
    written += [each.late for each in operators if isinstance(each, graph.Aggregate | graph.Join)]
    found = [topic for topic in (*written, job.graph.dead_letters) if topic is not None]
    return list(dict.fromkeys(read)), list(dict.fromkeys(found))


def run(
    name: str, spark: SparkSession, client: SyncClient, url: str, checkpoint: str
) -> dict[str, list[Message]]:
    """Run an example, and return its output by topic. Delete its topics at the end.

    Raises TopicExists if one of them exists already.
    """
    chosen = example(name)
    job = chosen.job()
    read, written = topics(job)
    made: list[str] = []
    try:
        for topic in dict.fromkeys((*read, *written)):
            client.create_topic(topic)
            made.append(topic)
        chosen.publish(client)
        job.run_available(spark, checkpoint=checkpoint, url=url)
        return {topic: client.poll(topic) for topic in written}
    finally:
        for topic in made:
            client.delete_topic(topic)
