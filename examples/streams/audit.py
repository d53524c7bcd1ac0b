"""Use the events of a data platform: lineage and usage of datasets, and programs that start others.

An audit event has a program, a dataset, and whether the program read or wrote it. The job joins each reader of a
dataset with its newest writer, and counts accesses by dataset and minute. A report of a program's state may say that a
run is completed. Then the job publishes, once for each run, the program to start next.
"""

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from broker.client import SyncClient
from broker.streams import Job, Json, Processor, State, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json, time_of

ACCESSES = "examples/accesses"
LINEAGE = "examples/lineage-edges"
USAGE = "examples/usage"
STATES = "examples/program-states"
TRIGGERS = "examples/triggers"
NEXT = {"importer": "cleaner", "cleaner": "report"}

Event = dict[str, Any]


class Once(Processor[Event, Event]):
    """Gives a trigger for the first report that a run is completed, and none for repeated reports."""

    @override
    def process(self, key: str, value: Event, time_ms: int, state: State) -> Iterable[Event]:
        """Return the trigger, if there is one."""
        if state.value is None and value["state"] == "completed" and value["program"] in NEXT:
            state.value = "triggered"
            yield {"start": NEXT[value["program"]], "because_of": key}


def job() -> Job:
    """Return the job. It has three ends, with one query each."""
    builder = StreamBuilder("audit")
    accesses = builder.source(ACCESSES, Json()).select_timestamp(time_of)
    writes, reads = accesses.branch(
        lambda event: event["access"] == "write", lambda event: event["access"] == "read"
    )
    edges = reads.join(writes).where(_dataset).equal_to(_dataset).apply(_edge)
    edges.sink(LINEAGE, Json())
    usage = accesses.key_by(_dataset).window(tumbling("1m")).count()
    usage.sink(USAGE, Json())
    states = builder.source(STATES, Json())
    states.key_by(lambda event: event["run"]).process(Once()).sink(TRIGGERS, Json())
    return builder.build()


def _dataset(event: Event) -> str:
    return str(event["dataset"])


def _edge(read: Event, write: Event) -> Event:
    return {"from": write["program"], "dataset": read["dataset"], "to": read["program"]}


def publish(client: SyncClient) -> None:
    """Publish the sample; its last access closes the minute before it."""
    accesses = [
        ("importer", "write", "raw", 1),
        ("cleaner", "read", "raw", 5),
        ("cleaner", "write", "clean", 9),
        ("report", "read", "clean", 30),
        ("nightly", "write", "end", 180),
    ]
    publish_json(
        client,
        ACCESSES,
        *(
            {"program": program, "access": access, "dataset": dataset, "time": after_noon(at)}
            for program, access, dataset, at in accesses
        ),
    )
    states = [("run-1", "running"), ("run-1", "completed"), ("run-2", "running")]
    states += [("run-1", "completed"), ("run-3", "failed")]
    publish_json(
        client, STATES, *({"run": r, "program": "importer", "state": state} for r, state in states)
    )
