"""``python -m benchmarks.assignment``: measure the cost of finding a topic's assigned leader.

There are 256 nodes and a million topics. A node makes an assignment once for each change of the membership, and then
looks up every topic in it. At the goal of 10 µs a topic this takes ten seconds for a million topics. Tests check the
properties of assignments with 5,000 topics: tests/unit/coordination/test_assignment.py.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from broker.coordination.assignment import SLOTS, Assignment
from broker.model import TopicId

NODES, TOPICS = 256, 1_000_000
TOPIC_US_MAX = 10.0


def main() -> int:
    """Measure and print; return 1 if a topic costs more than the bound."""
    topics = [TopicId(f"namespace{number % 100}", f"topic-{number}") for number in range(TOPICS)]
    before, first_s = _made(range(NODES - 1))
    after, made_s = _made(range(NODES))
    leaders, asked_s = _asked(before, topics)
    moved = sum(then != now for then, now in zip(leaders, _asked(after, topics)[0], strict=True))
    topic_us = (made_s + asked_s) / TOPICS * 1e6
    print(f"{NODES} nodes, {SLOTS} slots, {TOPICS:,} topics")
    print(
        f"assignment: the first {first_s * 1e3:.1f} ms, after a node joined {made_s * 1e3:.1f} ms"
    )
    print(f"a topic: {topic_us:.2f} µs, of at most {TOPIC_US_MAX:.0f} µs")
    counts = Counter(after.leader_of_slot(slot) for slot in range(SLOTS))
    led = sorted(counts[node] for node in range(NODES))
    print(f"moved when the {NODES}th joined: {moved / TOPICS:.2%} of the topics")
    print(f"slots a node: {led[0]} to {led[-1]}, half of them at most {led[NODES // 2]}")
    return int(topic_us > TOPIC_US_MAX)


def _made(instances: Sequence[int]) -> tuple[Assignment, float]:
    began = time.perf_counter()
    made = Assignment(instances)
    return made, time.perf_counter() - began


def _asked(assignment: Assignment, topics: Sequence[TopicId]) -> tuple[list[int | None], float]:
    began = time.perf_counter()
    leaders = [assignment.leader_of(topic) for topic in topics]
    return leaders, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
