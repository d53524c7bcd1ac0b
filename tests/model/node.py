"""A node that executes one step after another; it claims if a step needs the lead and the node does not lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model import leading, payloads
from tests.model.chain import Lead, Node, get_head
from tests.model.claiming import take_over
from tests.model.deleting import create, delete, sweep_generations
from tests.model.reading import reader, reference_reader
from tests.model.store import RECORD, Program, payload

Step = tuple[Any, ...]


def alone(node: Node, what: str, more: Sequence[Any]) -> Program[bool]:
    """Do a step that needs no lead; return False if it needs one."""
    match what:
        case "wait":
            yield ("wait", more[0])
        case "read":
            yield from reader(more[0])
        case "references":
            yield from reference_reader()
        case "create":
            yield from create(node)
        case "generations":
            yield from sweep_generations(node)
        case "delete":
            gen, is_there = yield from get_head(RECORD, "!")
            if is_there:
                yield from delete(node, gen)
        case _:
            return False
    return True


def marks(lead: Lead, stage: str = "all") -> Program[Lead | None]:
    """Put marks in one step, or one stage of it, so that appends are confirmed between the stages."""
    if stage == "gather":
        leading.gather_marks(lead)
    elif stage == "put":
        return lead if (yield from leading.put_batch(lead)) else None
    elif stage == "raise":
        leading.raise_marked(lead)
    elif not (yield from leading.put_marks(lead)):
        return None
    return lead


def append(node: Node, lead: Lead, more: Sequence[Any]) -> Program[Lead | None]:
    led, ok = yield from leading.append(node, lead, *more)
    if ok:
        yield ("ev", "done", more[0])
    return led


def with_payloads(node: Node, lead: Lead, what: str, more: Sequence[Any]) -> Program[Lead | None]:
    log = payload(lead.gen, more[0])
    node.busy = log
    led: Lead | None = lead
    match what:
        case "store":
            led = yield from payloads.store_payload(node, lead, *more)
        case "publish":
            led = yield from payloads.publish(node, lead, *more)
        case "drop":
            led = yield from payloads.drop(node, lead, *more)
        case _:
            yield ("forget", log)
    node.busy = None
    return led


def as_leader(node: Node, lead: Lead, what: str, more: Sequence[Any]) -> Program[Lead | None]:
    """Do one step; None: this node no longer knows that it leads."""
    led: Lead | None = lead
    match what:
        case "append":
            led = yield from append(node, lead, more)
        case "marks":
            led = yield from marks(lead, *more)
        case "floor":
            led = yield from leading.raise_floor(node, lead, *more)
        case "poll":
            led = yield from leading.poll(lead)
        case "rollback":
            led = yield from leading.roll_back(node, lead, *more)
        case "pack":
            led = yield from leading.pack(node, lead)
        case "handoff":
            yield from leading.hand_off(node, lead)
            led = None
        case "store" | "publish" | "drop" | "forget":
            led = yield from with_payloads(node, lead, what, more)
        case _:
            assert what == "take", what
    return led


def program(node: Node, script: Sequence[Step]) -> Program[None]:
    lead: Lead | None = None
    for what, *more in script:
        if (yield from alone(node, what, more)):
            continue
        for _ in range(2):
            if lead is None:
                gen, is_there = yield from get_head(RECORD, "!")
                if not is_there:
                    break
                lead = yield from take_over(node, gen)
            if lead is not None:
                lead = yield from as_leader(node, lead, what, more)
                break
