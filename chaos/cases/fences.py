"""What only storage can stop: late changes, claims at once, answers that are not so."""

from __future__ import annotations

import asyncio

from broker.model import row_id
from broker.storage.log import Deleted
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import Scene
from chaos.cases.inside import LOG, final, keepers, photographed

_LOST = frozenset({"lost_tail", "lost_middle", "lost_prefix"})
_PHANTOM = frozenset({"phantom", "refused_but_stored"})
_BELOW = _PHANTOM | {"skipped", "changed_read", "reordered"}


async def back_again(scene: Scene) -> None:
    """A leads, B leads, A leads again; then a change of A's first time arrives, at ids used anew."""
    a, b = keepers(scene, "a", "b")
    await a.claim()
    await a.publish(1000)
    a.way.loses = True
    early = asyncio.create_task(a.publish(2000))
    await a.way.lost()
    first = await b.claim()
    acknowledged = await early
    a.way.loses = False
    again = await a.claim()
    used = await a.publish(2000)
    await a.publish(2500)
    arrived = await a.way.bring()
    scene.fault(
        "a change of an earlier reign arrived at ids that a later one had used",
        happened=arrived > 0 and used and again == first + 1 and not acknowledged,
        changes=arrived,
    )
    await final(b)


BOUNCE_BACK = Case(
    number=4,
    name="bounce-back",
    title="A node leads, another does, and the first again",
    happens=(
        "The log goes from A to B and back; A, whose clock makes it use the same ids again, is overtaken "
        "by a change that it sent in its first epoch. Played on the nodes' logs in this process: no real "
        "server keeps a change for so long on demand."
    ),
    protects="A change is made only if the head is exactly as its writer saw it last, epoch and token included.",
    mutant="compare",
    without="The late change replaces an acknowledged message, which is gone.",
    violations=_LOST,
    where=CaseTarget.INSIDE,
    play=back_again,
)


async def at_once(scene: Scene) -> None:
    """Two candidates read the same epoch; the slower one writes when the other has acknowledged."""
    a, b, slow = keepers(scene, "a", "b", "slow")
    await a.claim()
    await a.publish(1000)
    slow.way.gate.shut()
    claiming = asyncio.create_task(slow.claim())
    await slow.way.gate.arrived()
    quick_epoch = await b.claim()
    acknowledged = await b.publish(2000)
    seen = await b.read("consumer")
    slow.way.gate.open()
    await asyncio.wait([claiming])
    told = claiming.exception()
    scene.fault(
        "a claim was written after another of the same epoch had acknowledged",
        happened=quick_epoch == 2 and acknowledged,
        quick_epoch=quick_epoch,
        slow_told=repr(told),
    )
    if told is None:
        await slow.publish(slow.after())
    await b.read("consumer", seen)
    await final(b)


EPOCH_RACE = Case(
    number=5,
    name="epoch-race",
    title="Two candidates compute the same next epoch",
    happens=(
        "A candidate has read the head of the last page and is held back before it writes its claim; another "
        "claims and acknowledges; then the first writes. On the nodes' logs in this process, where a gate "
        "holds the one change back."
    ),
    protects="A claim is a compare-and-set from exactly what was read: the slower one fails and stops.",
    mutant="compare",
    without="Both hold the log, and messages appear below what consumers have read.",
    violations=_BELOW,
    where=CaseTarget.INSIDE,
    play=at_once,
)


async def late_row(scene: Scene) -> None:
    """A fenced leader's change arrives below what consumers have read."""
    a, b = keepers(scene, "a", "b")
    await a.claim()
    await a.publish(1000)
    a.way.loses = True
    early = asyncio.create_task(a.publish(1500))
    await a.way.lost()
    await b.claim()
    above = await b.publish(2000)
    acknowledged = await early
    seen = await b.read("consumer")
    arrived = await a.way.bring()
    scene.fault(
        "a change arrived below a consumer's cursor",
        happened=arrived > 0 and above and not acknowledged and seen == row_id(2000, 0),
        changes=arrived,
    )
    await b.publish(2500)
    await b.read("consumer", seen)
    await final(b)


LATE_ROW = Case(
    number=7,
    name="late-row",
    title="A message arrives below a consumer's cursor",
    happens=(
        "A leader's append is kept on its way, the next leader appends above it, a consumer reads; then the "
        "first one arrives. On the nodes' logs in this process: no real server keeps a write on demand."
    ),
    protects="Entries are written only together with the head that their leader expects, so never after its end.",
    mutant="compare",
    without="What was refused is in the log, below where consumers are.",
    violations=_BELOW,
    where=CaseTarget.INSIDE,
    play=late_row,
)


async def lying(scene: Scene) -> None:
    """A change is made and told as False."""
    (a,) = keepers(scene, "a")
    await a.claim()
    await a.publish(1000)
    a.way.lies = 1
    told_ok = await a.publish(2000)
    if a.hold is None or a.hold.done:
        await a.claim()
    await a.publish(a.after(1000))
    scene.fault(
        "a compare-and-set was done and said False",
        happened=a.way.lied > 0,
        lied=a.way.lied,
        acknowledged_all_the_same=told_ok,
    )
    await final(a)


LYING_CAS = Case(
    number=20,
    name="lying-cas",
    title="A compare-and-set that was done says False",
    happens=(
        "The answer of an append is lost between gateway and region server, the gateway tries again by "
        "itself and says False. On the nodes' logs in this process: a proxy before the gateway can cut "
        "its answer, and only the gateway itself can make it a False."
    ),
    protects="Every False is resolved by reading head and entry: they are there, so it was done.",
    mutant="resolve-false",
    without="What clients are told was refused is in the log.",
    violations=_PHANTOM,
    where=CaseTarget.INSIDE,
    play=lying,
)


async def from_the_past(scene: Scene) -> None:
    """A region server that lost its region goes on answering a fenced leader's reads."""
    a, b = keepers(scene, "a", "b")
    await a.claim()
    await a.publish(1000)
    a.way.past = photographed(a)
    await b.claim()
    fenced = await b.publish(b.after())
    a.way.past_reads = 1
    told_ok = await a.publish(3000)
    scene.fault(
        "a fenced leader was told by an old region server that it leads",
        happened=fenced and a.way.read_past > 0,
        reads=a.way.read_past,
        acknowledged=told_ok,
    )
    await b.publish(b.after(5000))
    await final(b)


ZOMBIE_REGION_SERVER = Case(
    number=21,
    name="zombie-region-server",
    title="A region server that is none any more answers reads from the past",
    happens=(
        "The leader is fenced, and a reading of its page's head shows it the time before. Then the old region "
        "server ends. On the nodes' logs in this process: HBase fences such a server within moments, and "
        "not on demand."
    ),
    protects="That a leader may append is decided by the conditional write itself, never by a reading before it.",
    mutant="lead-by-reading",
    without="It believes what it reads, and acknowledges over its successor.",
    violations=_LOST | {"two_epochs"},
    where=CaseTarget.INSIDE,
    play=from_the_past,
)


async def deleted(scene: Scene) -> None:
    """A topic is deleted under its leader, which goes on; then it is created again."""
    a, b = keepers(scene, "a", "b")
    await a.claim()
    await a.publish(1000)
    ending = scene.history.invoke("operator", "delete", str(LOG.topic), {"generation": 1})
    await b.logs.delete(LOG, b.name)
    ending.ok({})
    went_on = await a.publish(2000)
    try:
        await a.claim()
    except Deleted:
        refused = True
    else:
        refused = False
        await a.publish(3000)
    ending = scene.history.invoke("operator", "create", str(LOG.topic), {"generation": 2})
    ending.ok({"generation": 2})
    b.log = LOG._replace(generation=2)
    await b.claim()
    await b.publish(b.after(5000))
    scene.fault(
        "the leader of a deleted topic went on",
        happened=refused or went_on,
        acknowledged=went_on,
        claim_refused=refused,
    )
    await final(b)


DELETE_RECREATE = Case(
    number=15,
    name="delete-recreate",
    title="A topic is deleted under its leader, and created again",
    happens=(
        "Another node has deleted the log, and dies before the record says so; the leader goes on and claims "
        "anew. On the nodes' logs in this process, where the delete can stop before the record."
    ),
    protects="A delete closes the last page before the root says deleted; neither is ever opened again.",
    mutant="close-at-delete",
    without="The deleted topic is written to, and its messages go with it.",
    violations=frozenset({"written_after_delete"}) | _LOST,
    where=CaseTarget.INSIDE,
    play=deleted,
)

CASES = (BOUNCE_BACK, EPOCH_RACE, LATE_ROW, DELETE_RECREATE, LYING_CAS, ZOMBIE_REGION_SERVER)
