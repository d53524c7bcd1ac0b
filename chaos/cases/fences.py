"""Cases that only storage can stop: late changes, concurrent claims, false answers, stale reads."""

from __future__ import annotations

import asyncio

from broker.model import log_key
from broker.storage.log import Deleted
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import Scene
from chaos.cases.inside import LOG, final, keepers, photographed

_LOST = frozenset({"lost_tail", "lost_middle", "lost_prefix"})
_PHANTOM = frozenset({"phantom", "refused_but_stored"})
_BELOW = _PHANTOM | {"skipped", "changed_read", "reordered"}


async def back_again(scene: Scene) -> None:
    """A leads, B leads, A leads again; then a change of A's first epoch arrives, at reused ids."""
    a, b = await keepers(scene, "a", "b")
    await a.publish(1000)
    early = await a.publish_lost(2000)
    first = await b.claim()
    acknowledged = await early
    a.way.loses = False
    again = await a.claim()
    used = await a.publish(2000)
    await a.publish(2500)
    arrived = await a.way.bring()
    scene.fault(
        "a change of an earlier epoch arrived at ids that a later epoch had used",
        happened=arrived > 0 and used and again == first + 1 and not acknowledged,
        changes=arrived,
    )
    await final(b)


BOUNCE_BACK = Case(
    number=4,
    name="bounce-back",
    title="A node leads, then another, then the first again",
    happens=(
        "The log goes from A to B and back. A's clock makes it use the same ids again. Then a change arrives "
        "that A sent in its first epoch. The case is played on the nodes' logs in this process, because no "
        "real server delays a change for so long on demand."
    ),
    protects="Storage makes a change only if the head is exactly as its writer saw it last, with epoch and token.",
    mutant="compare",
    without="The late change replaces an acknowledged message, which is lost.",
    violations=_LOST,
    where=CaseTarget.INSIDE,
    play=back_again,
)


async def at_once(scene: Scene) -> None:
    """Two candidates read the same epoch; the slower one writes after the other has acknowledged."""
    a, b, slow = await keepers(scene, "a", "b", "slow")
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
        "a claim was written after another claim of the same epoch had acknowledged",
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
        "A candidate has read the head of the last page, and is held back before it writes its claim. Another "
        "candidate claims and acknowledges. Then the first one writes. The case is played on the nodes' logs "
        "in this process, where a gate holds the change back."
    ),
    protects="A claim is a compare-and-set from exactly the head that was read: the slower claim fails.",
    mutant="compare",
    without="Both hold the log, and messages appear below the consumers' cursors.",
    violations=_BELOW,
    where=CaseTarget.INSIDE,
    play=at_once,
)


async def late_row(scene: Scene) -> None:
    """A fenced leader's change arrives below a consumer's cursor."""
    a, b = await keepers(scene, "a", "b")
    await a.publish(1000)
    early = await a.publish_lost(1500)
    await b.claim()
    above = await b.publish(2000)
    acknowledged = await early
    seen = await b.read("consumer")
    arrived = await a.way.bring()
    scene.fault(
        "a change arrived below a consumer's cursor",
        happened=arrived > 0 and above and not acknowledged and seen == log_key(2000, 0),
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
        "A leader's append is delayed on its way. The next leader appends above it, and a consumer reads. Then "
        "the delayed append arrives. The case is played on the nodes' logs in this process, because no real "
        "server delays a write on demand."
    ),
    protects="Entries are written only if the head is as their leader expects, so never after the leader's end.",
    mutant="compare",
    without="A refused message is in the log, below the consumers' cursors.",
    violations=_BELOW,
    where=CaseTarget.INSIDE,
    play=late_row,
)


async def lying(scene: Scene) -> None:
    """A change is done, but its answer is False."""
    (a,) = await keepers(scene, "a")
    await a.publish(1000)
    a.way.lies = 1
    told_ok = await a.publish(2000)
    if a.hold is None or a.hold.done:
        await a.claim()
    await a.publish(a.after(1000))
    scene.fault(
        "a compare-and-set was done, but its answer was False",
        happened=a.way.lied > 0,
        lied=a.way.lied,
        acknowledged_all_the_same=told_ok,
    )
    await final(a)


LYING_CAS = Case(
    number=20,
    name="lying-cas",
    title="A compare-and-set was done, but its answer is False",
    happens=(
        "The answer of an append is lost between the gateway and the region server. The gateway repeats the "
        "append by itself, and answers False. The case is played on the nodes' logs in this process: a proxy "
        "before the gateway can only cut the answer, not turn it into a False."
    ),
    protects="The leader reads the head and the entry after every False: if they are there, the change was done.",
    mutant="resolve-false",
    without="A publish is answered as refused, but its messages are in the log.",
    violations=_PHANTOM,
    where=CaseTarget.INSIDE,
    play=lying,
)


async def from_the_past(scene: Scene) -> None:
    """A region server that lost its region goes on answering a fenced leader's reads."""
    a, b = await keepers(scene, "a", "b")
    await a.publish(1000)
    a.way.past = photographed(a)
    await b.claim()
    fenced = await b.publish(b.after())
    a.way.past_reads = 1
    told_ok = await a.publish(3000)
    scene.fault(
        "a stale read from an old region server told a fenced leader that it leads",
        happened=fenced and a.way.read_past > 0,
        reads=a.way.read_past,
        acknowledged=told_ok,
    )
    await b.publish(b.after(5000))
    await final(b)


ZOMBIE_REGION_SERVER = Case(
    number=21,
    name="zombie-region-server",
    title="A region server that lost its region answers stale reads",
    happens=(
        "The leader is fenced, but a stale read shows it the head from before. Then the old region server "
        "ends. The case is played on the nodes' logs in this process: HBase fences such a server within "
        "moments, and the moment can't be chosen."
    ),
    protects="The conditional write itself decides that a leader may append, never a read before it.",
    mutant="lead-by-reading",
    without="The leader believes the stale read, and acknowledges although it has a successor.",
    violations=_LOST | {"two_epochs"},
    where=CaseTarget.INSIDE,
    play=from_the_past,
)


async def deleted(scene: Scene) -> None:
    """A topic is deleted while its leader goes on; then it is created again."""
    a, b = await keepers(scene, "a", "b")
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
    title="A topic is deleted while its leader goes on, and created again",
    happens=(
        "Another node deletes the log, and dies before the record says so. The leader goes on, and claims the "
        "log again. The case is played on the nodes' logs in this process, where the delete can stop before "
        "the record."
    ),
    protects="A delete closes the last page before it marks the root as deleted. Neither is ever opened again.",
    mutant="close-at-delete",
    without="The leader writes to the deleted topic, and these messages are lost.",
    violations=frozenset({"written_after_delete"}) | _LOST,
    where=CaseTarget.INSIDE,
    play=deleted,
)

CASES = (BOUNCE_BACK, EPOCH_RACE, LATE_ROW, DELETE_RECREATE, LYING_CAS, ZOMBIE_REGION_SERVER)
