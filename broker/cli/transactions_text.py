"""The text output of ``broker tx``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from broker.cli.output import time_text, write_coloured_table, write_line, write_properties
from broker.model import TopicId

Json = Mapping[str, Any]

_COLOURS: Final = {"in_progress": "yellow", "committing": "yellow", "invalid": "red"}


def write_list(found: Json) -> None:
    """Write the transactions in progress, and the service's counts."""
    rows = [
        (
            str(each["id"]),
            each["type"],
            time_text(each["started_ms"]),
            time_text(each["expires_ms"]),
            each["name"] or each["client"] or "",
            str(len(each["checkpoints"]) or ""),
        )
        for each in found["in_progress"]
    ]
    if rows:
        names = ("TRANSACTION", "TYPE", "STARTED", "EXPIRES", "CLIENT", "CHECKPOINTS")
        write_coloured_table(names, rows, _COLOURS)
    more = found["in_progress_count"] - len(rows)
    if more > 0:
        write_line(f"and {more} more: broker tx list --limit {found['in_progress_count']}")
    write_line(
        f"{found['in_progress_count']} in progress, {found['committing']} of them committing; "
        f"{found['invalid']} invalid",
        err=True,
    )


def properties(found: Json) -> dict[str, object]:
    """Return one transaction as names and values."""
    out: dict[str, object] = {"transaction": found["id"], "state": found["state"].replace("_", " ")}
    for name in ("type", "client", "name"):
        if found.get(name):
            out[name] = found[name]
    for name in ("started", "expires"):
        if found.get(f"{name}_ms") is not None:
            out[name] = time_text(found[f"{name}_ms"])
    if found.get("checkpoints"):
        out["checkpoints"] = ", ".join(map(str, found["checkpoints"]))
    if found.get("changes"):
        out["changes"] = found["changes"]
    return out


def write_blockers(topic: TopicId, found: Json) -> None:
    """Write the transactions that hold consumers back, with advice for each."""
    name, blockers = f"{topic.namespace}/{topic.topic}", found["blockers"]
    if not blockers:
        write_line(f"no transaction holds consumers of {name} back", err=True)
        return
    write_coloured_table(
        ("TRANSACTION", "STATE", "FIRST MESSAGE", "SINCE", "OWN", "WAITING", "EXPIRES", "CLIENT"),
        map(_blocker, blockers),
        _COLOURS,
    )
    for each in blockers:
        write_line(f"{each['write_pointer']}: {each['advice']}", err=True)
    if not found["complete"]:
        write_line("there may be more after these: see --limit and --from", err=True)
    if found["service_problem"]:
        write_line(f"the transaction service does not answer: {found['service_problem']}", err=True)


def _blocker(each: Json) -> Sequence[str]:
    return (
        str(each["transaction"]),
        each["state"] or "",
        each["first"]["id"],
        f"{each['first']['time']} ({timedelta(seconds=int(each['since_s']))} ago)",
        str(each["messages"]),
        str(each["waiting"]),
        each["expires_at"] or "",
        each["client"] or "",
    )


def write_plan(plan: Json) -> None:
    """Write how many transactions can be pruned, or were, and why not more."""
    lines: dict[str, object] = {"invalid": plan["invalid"]}
    if "removed" in plan:
        lines["forgotten"] = plan["removed"]
    else:
        lines["can be forgotten"] = plan["prunable"]
    if plan["prunable"]:
        lines["from"], lines["through"] = plan["oldest_prunable"], plan["newest_prunable"]
    if plan["oldest_left"] is not None:
        lines["oldest that stays"] = plan["oldest_left"]
    unpassed = plan["unpassed"]
    if unpassed is not None:
        lines["topic"] = f"{unpassed['namespace']}/{unpassed['topic']}"
        lines["generation"] = unpassed["generation"]
        lines["page"] = unpassed["page"]
    write_properties(lines)
    if plan["reason"]:
        write_line(plan["reason"], err=True)
    if plan["prunable"] and "removed" not in plan:
        write_line("Prune them with: broker tx prune --yes", err=True)
