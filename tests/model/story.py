"""Print a run step by step."""

from __future__ import annotations

from typing import Any

from tests.model.adversary import Told
from tests.model.store import Call, Entry, Head, Key, Root, Row

PLACES = {"R": "root", "REC": "record", "M": "mark", "OLD": "too old"}


def entries(found: tuple[Entry, ...]) -> str:
    return ",".join(f"{e.id}={e.label}" for e in found)


def head(value: Any) -> str:
    if isinstance(value, Head):
        where = f"sealed({value.next})" if value.state == "sealed" else value.state
        owner = f"epoch {value.epoch} owner {value.owner} token {value.token}"
        return f"{where} {owner} pointer {value.ptr} marked {value.marked}"
    if isinstance(value, Root):
        place = f"generation {value.gen} page {value.page} floor {value.floor}"
        return f"{value.state} {place} token {value.token}"
    return "absent" if value is None else str(value)


def row(value: Row | None) -> str:
    if value is None:
        return "absent"
    return head(value.head) + (f" entries {entries(value.entries)}" if value.entries else "")


def place(key: Key) -> str:
    if key[0] == "P":
        return f"page {key[2]} of {key[1][0]}{key[1][1:]}"
    return " ".join(map(str, (PLACES[key[0]], *key[1:])))


def change(call: Call) -> str:
    _, key, expected, new, added, x = call
    text = f"change {place(key)}: {head(expected)} -> {head(new)}"
    text += f" + {entries(added)}" if added else ""
    return text + (f" x {sorted(x)}" if x else "")


def told(step: Told) -> str:
    """Return one step as a line of text."""
    actor, call, answer, *more = step
    kind = call[0]
    if kind == "ev":
        text = "answers: " + " ".join(map(str, call[1:]))
    elif kind == "change":
        text = f"{change(call)}: {answer}"
    elif kind.rstrip("!") == "get" and (answer is None or isinstance(answer, Row)):
        text = f"{kind} {place(call[1])}: {row(answer)}"
    else:
        text = f"{' '.join(map(str, call))}: {answer}"
    name = actor if isinstance(actor, str) else f"node {actor}"
    return f"{name:7} {' '.join([text, *(f'({word})' for word in more)])}"
