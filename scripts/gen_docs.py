"""Write the pages that are made from the code: ``make docs``. A test checks that they are current."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from broker.config.sections import Config, Key, iter_keys
from broker.config.sources import as_text
from broker.errors import BrokerError, registry
from broker.http.budget import DEFAULTS, BudgetKind
from broker.testing.mutants import MUTANTS
from broker.testing.mutants_processes import MUTANTS as OF_PROCESSES
from chaos.cases import CASES, Case

ROOT = Path(__file__).resolve().parent.parent
MADE = "<!-- Made by scripts/gen_docs.py (make docs): change the code, not this page. -->\n"

_CONFIG_HEAD = """
# Configuration

A value comes from, later ones winning: the default, a TOML file (`broker serve --config FILE`; a table
per section), the environment, a flag. Unknown keys are errors, and so is a variable
that begins with `BROKER_` and names none. `broker config` prints what is in force and where each value came from.

```toml
[server]
port = 9090

[limits]
body_bytes_max = 1048576
```
"""

_ERRORS_HEAD = """
# Errors

Each code leads to what it means and what to do.

A request that names `application/json` or `avro/json` in `Accept`, or is of that type, gets errors as
`{"code", "message", "retriable", "outcome"}`; all others get the message as plain text. *Refused* means
that the request has had no effect and never will; *unknown* that it may have been done or not. *Retriable* means that
the same request, sent again unchanged, is both safe and useful.

| code | status | outcome | retriable | meaning |
|---|---|---|---|---|
"""

_BUDGETS_HEAD = """
# Budgets

A node counts the memory and the work of requests before it takes them: for the connection, for its
caller (an address, with all its connections), and for the node.

* A request that takes its connection over the bound is refused: 413 `body_too_large`, or 503 `overloaded`.
* When a caller or the node has no more, the largest holder makes room: of the caller that holds the most, the
  connection that holds the most. If that is the one that asks, it is refused with 503; if not, it is cut (while its
  request is still read, with a 503), and the one that asks goes on.

`broker_budget_held{budget}` shows what is held, `broker_budget_refused_total{budget}` how often there was no more.

| budget | of | a connection | a caller | a node |
|---|---|--:|--:|--:|
"""

_BUDGETS_FOOT = """
`body_bytes` is counted from 1 KiB on, and a head from 1 KiB on: smaller ones are part of the cost of a connection, of
which there are `server.connections_max`. `waiting` of a caller and a node is `limits.waiting_polls_max`. `log_lines` is
by the second: further lines are dropped. Beside these, publishes that wait for the disk have bounds of their own
(`limits.queued_bytes_max`, `limits.queued_requests_max`).
"""

_GUARDS_HEAD = """
# Guards

A guard is a rule that a careless change could drop, and with it a promise. The product has no switch for any.
For each there is a **mutant** in the test kit (`broker/testing/mutants.py`): one function of the product, swapped for
one that lacks the rule. A guard whose absence nothing notices is not tested: so tests put each mutant in force, and
the checkers, which see nothing but what clients were told, must name what goes wrong.

They do so in random runs of one log (`tests/kit/logs`), in the [simulated cluster](simulation.md), and in real
processes ([failure cases](../reference/failure-cases.md)). The model that the rules were found with has the same mutants
(`tests/model`).

```sh
python -m broker.testing.mutants                                      their names
python -m broker.testing.mutants dedupe serve --port 8080             a broker without one
python -m tests.kit.logs.exploration --plan storm --mutant tokens --runs 100
python -m tests.kit.seeds.directed dedupe                   what its schedule shows in the cluster
python -m tests.kit.seeds.directed dedupe --with            the same with the guard
```

| guard | what its mutant does | runs of one log: plan | in the cluster: workload, seed: faults | found there as |
|---|---|---|---|---|
"""

_ELSEWHERE_HEAD = """
A schedule of the cluster is about a minute of virtual time, in which what is rare happens soon. The seed that shows
the mutant must show nothing wrong without it. The violations, as a client sees them:

| guard | without it |
|---|---|
"""

_NOT_IN_CLUSTER_HEAD = """
The cluster does not show these:

| guard | why not | shown in |
|---|---|---|
"""


_OF_PROCESSES_HEAD = """
The parts below the processes have mutants, too (`broker/testing/mutants_processes.py`). The verifier's cases find them
(two also the tests of LevelDB's files, `tests/integration/test_leveldb_durability.py`):

| guard | what its mutant does | found by the case |
|---|---|---|
"""


def guards_page() -> str:
    """Return ``docs/internals/guards.md``."""
    table = tomllib.loads((ROOT / "tests/simulation/cluster_mutants.toml").read_text("utf-8"))
    scheduled = {row["name"]: row for row in table["mutant"]}
    return "".join(
        [
            MADE,
            _GUARDS_HEAD,
            *(_guard(name, scheduled.get(name)) for name in MUTANTS),
            _ELSEWHERE_HEAD,
            *(f"| `{row['name']}` | {row['without_it']} |\n" for row in table["mutant"]),
            _NOT_IN_CLUSTER_HEAD,
            *(
                f"| `{row['name']}` | {row['why']} | `{row['where']}` |\n"
                for row in table["elsewhere"]
            ),
            _OF_PROCESSES_HEAD,
            *(
                f"| `{name}` | {mutant.does} | {_cases_of(name)} |\n"
                for name, mutant in OF_PROCESSES.items()
            ),
        ]
    )


def _cases_of(name: str) -> str:
    return ", ".join(f"`{case.name}`" for case in CASES.values() if case.mutant == name)


def _guard(name: str, row: dict[str, Any] | None) -> str:
    mutant = MUTANTS[name]
    plan = mutant.plan or "none"
    shown = "none | none" if row is None else f"{_schedule(row)} | `{row['violation']}`"
    return f"| `{name}` | {mutant.does} | {plan} | {shown} |\n"


def _schedule(row: dict[str, Any]) -> str:
    """Return what a schedule does, in a few words."""
    faults = [*row.get("faults", ()), *(kind for kind, *_ in row.get("script", ()))]
    storage = [name for name in row["bias"] if not name.endswith("_ms")]
    workload = row.get("workload", "log")
    return f"{workload}, {row['seed']}: {', '.join([*dict.fromkeys(faults), *storage]) or 'calm'}"


_CASES_HEAD = """
# Failure cases

Failures that trusted brokers have had. The verifier plays each of them on purpose. A case proves
that its fault happened (if it did not, the result is unknown: exit 2) and passes (exit 0). Without the protection it fails
(exit 1), and the verdict names the violation: a test that can't fail shows nothing.

```
python -m chaos cases                                list them; --json
python -m chaos case zombie-leader                   play one
python -m chaos case zombie-leader --mutant          the same without the protection
python -m chaos case all                             all of them, on one cluster
```

A case runs in one of three places:

* *Cluster*: three nodes, ZooKeeper and HBase. Every connection goes through Toxiproxy, and each case has tables of its own.
* *Alone*: a broker, or its store, over LevelDB, as processes.
* *Inside*: the logs of several nodes in the verifier's own process, over a table that fails at a chosen moment, as no real
  server can be made to.

A **mutant** takes the protection away: the product with one function swapped
(`broker/testing/mutants.py`; the product itself has no switch). The rules that they drop are in
[guards](../internals/guards.md). `chaos/checkers/` explains the names of violations. The last results are those of
[23 November 2026](../results/2026-11-23-cases.md).
"""


def config_page() -> str:
    """Return ``docs/reference/config.md``."""
    parts = [MADE, _CONFIG_HEAD]
    for section, keys in groupby(iter_keys(), key=lambda known: known.section):
        parts.append(_section(section, keys))
    return "".join(parts)


def errors_page() -> str:
    """Return ``docs/reference/errors.md``."""
    return MADE + _ERRORS_HEAD + "".join(_error_row(error) for error in answered_errors())


def answered_errors() -> list[type[BrokerError]]:
    """Return what a request can be answered with: the leaves of the tree, and its root."""
    own = [error for error in registry() if error.__module__ == BrokerError.__module__]
    leaves = [error for error in own if not set(error.__subclasses__()) & set(own)]
    return [*leaves, BrokerError]


def _section(section: str, keys: Iterator[Key]) -> str:
    doc = _first_line(type(getattr(Config(), section)))
    head = f"\n## {section}\n\n{doc}\n\n| key | flag | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{known.name}` | `{known.flag}` | {_code(as_text(known.default))} | {known.doc} |\n"
        for known in keys
    )


def _error_row(error: type[BrokerError]) -> str:
    retriable = "yes" if error.retriable else "no"
    meaning = _first_line(error)
    code = f"[`{error.code}`](../guides/troubleshooting.md#{error.code})"
    return f"| {code} | {error.http_status} | {error.outcome} | {retriable} | {meaning} |\n"


def budgets_page() -> str:
    """Return ``docs/reference/budgets.md``."""
    rows = "".join(
        f"| `{kind}` | {bounds.doc} | {_amount(bounds.connection, kind)} | {_amount(bounds.caller, kind)} "
        f"| {_amount(bounds.node, kind)} |\n"
        for kind, bounds in DEFAULTS.items()
    )
    return MADE + _BUDGETS_HEAD + rows + _BUDGETS_FOOT


def _amount(amount: int, kind: BudgetKind) -> str:
    if not kind.endswith("_bytes"):
        return f"{amount:,}"
    mib = 1024 * 1024
    return f"{amount // mib} MiB" if amount % mib == 0 else f"{amount // 1024} KiB"


def cases_page() -> str:
    """Return ``docs/reference/failure-cases.md``."""
    return MADE + _CASES_HEAD + "".join(_case_section(case) for case in CASES.values())


def _case_section(case: Case) -> str:
    found = ", ".join(f"`{name}`" for name in sorted(case.violations))
    verdict = f"{case.without} The verdict names {found}." if found else case.without
    return (
        f"\n## {case.number}. {case.name}\n\n{case.title}. ({case.where.capitalize()}.)\n\n"
        f"* Fault: {case.happens}\n"
        f"* Protection: {case.protects}\n"
        f"* Without it (mutant `{case.mutant}`): {verdict}\n"
    )


def _first_line(documented: type) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].replace("``", "`")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/config.md": config_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/budgets.md": budgets_page,
    "docs/internals/guards.md": guards_page,
    "docs/reference/failure-cases.md": cases_page,
}


def main() -> int:
    """Write every page."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
