"""Compare publishes through a node with bare commits, and forwarded publishes with direct ones.

Each topic has one connection, on which one request follows the other. The bare client has as many senders. So both have
the same number of commits in flight, and neither can merge two commits into one. Each side runs in its own process,
with a blocking thread for each sender.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.cluster.ground import Ground, publishes
from benchmarks.figures import Question, Ratio, Series, compare, judged
from benchmarks.harness import Bench, Side

POINTS = ((1, 1), (1, 100), (8, 1), (8, 10), (8, 100), (8, 1000), (64, 100))
"""Pairs: the number of topics, and the messages in a request."""
RATE_AT, RATE_MUST = (8, 100), 0.6
P50_AT, P50_MUST_MS = (1, 1), 1.0
WARM_S = 1.5


async def through_a_node(bench: Bench, ground: Ground) -> Question:
    """Measure publishes through a node that leads the topics, as a part of the rate of bare commits."""
    question = Question(letter="g", title="publishes through a node, beside bare commits")
    node = ground.nodes[0]
    names = await ground.topics("rates", max(topics for topics, _ in POINTS), node.instance)

    def sides_of(topics: int, messages: int) -> list[Side]:
        ours = partial(publishes, node.port, names[:topics], messages)
        bare = partial(ground.bare, topics, messages)
        return [
            Side(name=_named("node", topics, messages), run=ours, warm_s=WARM_S),
            Side(name=_named("bare", topics, messages), run=bare, warm_s=WARM_S),
        ]

    # The difference is only half a millisecond. So measure it separately with more turns, before the load that
    # keeps HBase's disk busy.
    await bench.measure(question, sides_of(*P50_AT), run_s=bench.plan.run_s)
    others = [side for point in POINTS if point != P50_AT for side in sides_of(*point)]
    await bench.measure(question, others)
    for point in POINTS:
        ours, bare = (question.named(_named(side, *point)) for side in ("node", "bare"))
        must = RATE_MUST if point == RATE_AT else None
        question.ratios.append(compare(ours, bare, must=must))
        if point == P50_AT:
            question.ratios.append(p50_above(ours, bare, must_ms=P50_MUST_MS))
    return question


async def forwarded(bench: Bench, ground: Ground) -> Question:
    """Measure the cost of a publish through a node that does not lead the topic."""
    question = Question(letter="h", title="forwarded publishes beside direct ones")
    leader, other = ground.nodes[0], ground.nodes[1]
    names = await ground.topics("rates", 8, leader.instance)
    for topics, messages in (P50_AT, RATE_AT):
        sides = [
            Side(
                name=_named(side, topics, messages),
                run=partial(publishes, node.port, names[:topics], messages),
                warm_s=WARM_S,
            )
            for side, node in (("direct", leader), ("forwarded", other))
        ]
        await bench.measure(question, sides)
        direct, passed_on = (question.named(side.name) for side in sides)
        question.ratios.append(compare(passed_on, direct))
        question.ratios.append(p50_above(passed_on, direct))
    return question


def p50_above(ours: Series, theirs: Series, *, must_ms: float | None = None) -> Ratio:
    """Return the median difference of our p50 and theirs over all turns, in ms."""
    text = f"p50 of {ours.name} - p50 of {theirs.name}, ms"
    above = [
        mine.p50_ms - other.p50_ms
        for mine, other in zip(ours.runs, theirs.runs, strict=False)
        if not mine.apart and not other.apart
        if mine.p50_ms is not None and other.p50_ms is not None
    ]
    why = ours.missing or theirs.missing
    if not why and len(above) < ours.runs_wanted:
        why = f"no result: both were kept in {len(above)} turns, {ours.runs_wanted} are wanted"
    value = statistics.median(above) if above else None
    if value is None or why:
        return Ratio(
            text=text, value=value, verdict="no result", must=must_ms, at_most=True, why=why
        )
    return judged(text, value, must=must_ms, at_most=True)


def _named(side: str, topics: int, messages: int) -> str:
    plural = "" if topics == 1 else "s"
    return f"{side}: {topics} topic{plural}, {messages:,} a request"
