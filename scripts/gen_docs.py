"""Write the pages that are generated from the code: ``make docs``. A test checks that they are current."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
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
from scripts.access_page import access_page
from scripts.quotas_page import quotas_page
from scripts.reference_pages import client_page, commands_page

ROOT = Path(__file__).resolve().parent.parent
MADE = "<!-- Made by scripts/gen_docs.py (make docs): change the code, not this page. -->\n"

_CONFIG_HEAD = """
# Configuration

A value comes from one of these sources. A later source overrides an earlier one:

1. the default;
2. a TOML file (`broker serve --config FILE`), with a table for each section;
3. the environment;
4. a flag.

An unknown key is an error, and so is a variable that begins with `BROKER_` and names no key. (`BROKER_URL`,
`BROKER_CONTEXT` and `BROKER_CONFIG` are options of commands.) `broker config` prints the values in force and the source
of each.

```toml
[server]
port = 9090

[limits]
body_bytes_max = 1048576
```
"""

_ERRORS_HEAD = """
# Errors

Each code links to its meaning and the remedy. The classes are in `broker.errors`; the Python client raises the class of the
code that it gets. `NotLeader` does not leave the nodes.

A request that names `application/json` or `avro/json` in `Accept`, or has that content type, gets errors as
`{"code", "message", "retriable", "outcome"}`. All other requests get the message as plain text.

* *Refused*: the request has had no effect, and will have none.
* *Unknown*: the request may have been done or not.
* *Retriable*: the same request, sent again unchanged, is both safe and useful.

| code | class | status | outcome | retriable | meaning |
|---|---|---|---|---|---|
"""

_BUDGETS_HEAD = """
# Budgets

A node counts the memory and the work of a request before it accepts the request. It counts for the connection, for
the caller, and for the node. The caller is the principal, with all its connections, if the request has credentials; else it
is the address (of IPv6 a network of 64 bits). A principal can have narrower bounds of its own: its [quotas](quotas.md).

* If a request would exceed the bound of its connection, the node refuses it: 413 `body_too_large`, or 503 `overloaded`.
* If a request would exceed the bound of the node, the caller that holds the most gives way: the node closes its largest
  connections (with a 503 while their requests are still being read), and accepts the request.
* If a request would exceed the bound of its caller, or its caller holds the most itself, the largest connection of that
  caller gives way. If it is the requesting connection, the node refuses the request with 503.

`broker_budget_held{budget}` shows the amount in use. `broker_budget_refused_total{budget}` counts refusals.

| budget | of | a connection | a caller | a node |
|---|---|--:|--:|--:|
"""

_BUDGETS_FOOT = """
* A body or a head counts from 1 KiB on. Smaller ones are part of the cost of a connection.
* The bound of `connections` is `server.connections_max`. The bound of `waiting` for a node is
  `limits.waiting_polls_max`, and three quarters of it for a caller.
* `log_lines` counts lines per second; the node drops further lines.
* Requests that wait for a thread, or for long work on the event loop, have turns by caller: a caller with a thousand
  requests delays those of another by one of its own each time.
* One caller may have at most three quarters of `transactions.transactions_in_progress_max` in progress, and never more than
  three times as many as are free: so it leaves some to others. The node that leads the transaction service counts
  them, from its claim on, for the callers of its HTTP port. The same holds for the places of a topic's queue.
* Publishes that wait for the disk have their own bounds: `limits.queued_bytes_max` and `limits.queued_requests_max`.
"""

_GUARDS_HEAD = """
# Guards

A guard is a rule that keeps a promise. A careless change could drop it. The product has no switch for a guard.

For each guard there is a **mutant** in the test kit (`broker/testing/mutants.py`): it replaces one function of the
product with a function that lacks the rule. If no test fails without a guard, the guard is not tested. So tests put
each mutant in force, and the checkers must name the violation. The checkers see only the answers that clients got.

The tests run mutants in random runs of one log (`tests/kit/logs`), in the [simulated cluster](simulation.md), and in
real processes ([failure cases](../reference/failure-cases.md)). The model by which the rules were found has the same
mutants (`tests/model`).

```sh
python -m broker.testing.mutants                                      the names of all mutants
python -m broker.testing.mutants dedupe serve --port 8080             a broker with a mutant in force
python -m tests.kit.logs.exploration --plan storm --mutant tokens --runs 100
python -m tests.kit.seeds.directed dedupe                   the result of its schedule in the cluster
python -m tests.kit.seeds.directed dedupe --with            the same with the guard
```

| guard | what its mutant does |
|---|---|
"""

_PLANS_HEAD = """
## Found in random runs of one log

Each plan (`--plan`) has other steps and faults. These plans find these mutants:

"""

_CLUSTER_HEAD = """
## Found in the simulated cluster

A schedule is about a minute of virtual time, in which rare faults happen often. With the mutant the seed must show
the violation; without the mutant it must show none.

"""

_NOT_IN_CLUSTER_HEAD = """
## Not found in the simulated cluster

The cluster does not show these guards. Other tests do.
"""


_OF_PROCESSES_HEAD = """
## Below the processes

The parts below the processes have mutants, too (`broker/testing/mutants_processes.py`). The verifier's cases find them
(two also the tests of LevelDB's files, `tests/integration/test_leveldb_durability.py`):

| guard | what its mutant does | found by the case |
|---|---|---|
"""


def guards_page() -> str:
    """Return ``docs/internals/guards.md``."""
    table = tomllib.loads((ROOT / "tests/simulation/cluster_mutants.toml").read_text("utf-8"))
    plans: dict[str, list[str]] = {}
    elsewhere: dict[str, dict[str, list[str]]] = {}
    for name, mutant in MUTANTS.items():
        if mutant.plan:
            plans.setdefault(mutant.plan, []).append(name)
    for row in table["elsewhere"]:
        elsewhere.setdefault(row["where"], {}).setdefault(row["why"], []).append(row["name"])
    return "".join(
        [
            MADE,
            _GUARDS_HEAD,
            *(
                f"| `{name}` | {mutant.does.replace('``', '`')} |\n"
                for name, mutant in MUTANTS.items()
            ),
            _PLANS_HEAD,
            *(f"* {plan}: {_listed(names)}.\n" for plan, names in plans.items()),
            _CLUSTER_HEAD,
            *(
                f"* `{row['name']}`: {row['without_it']}\n  {_schedule(row)}\n"
                for row in table["mutant"]
            ),
            _NOT_IN_CLUSTER_HEAD,
            *(_elsewhere(where, reasons) for where, reasons in elsewhere.items()),
            _OF_PROCESSES_HEAD,
            *(
                f"| `{name}` | {mutant.does} | {_cases_of(name)} |\n"
                for name, mutant in OF_PROCESSES.items()
            ),
        ]
    )


def _cases_of(mutant: str) -> str:
    return _listed(case.name for case in CASES.values() if case.mutant == mutant)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _elsewhere(where: str, reasons: dict[str, list[str]]) -> str:
    found = "".join(f"* {_listed(names)}: {why}\n" for why, names in reasons.items())
    return f"\n`{where}`:\n\n{found}"


def _schedule(row: dict[str, Any]) -> str:
    """Return the workload, the seed and the faults of a schedule, and the violation."""
    faults = [*row.get("faults", ()), *(kind for kind, *_ in row.get("script", ()))]
    storage = [name for name in row["bias"] if not name.endswith("_ms")]
    told = ", ".join([*dict.fromkeys(faults), *storage]) or "none"
    workload = row.get("workload", "log")
    return (
        f"Workload {workload}, seed {row['seed']}, faults: {told}. Violation: `{row['violation']}`."
    )


_CASES_HEAD = """
# Failure cases

These are failures that trusted brokers have had. The verifier causes each of them on purpose. A case proves that its
fault happened, and passes (exit 0). If the fault did not happen, the result is unknown (exit 2). Without the
protection the case fails (exit 1), and the verdict names the violation. So each case shows that it can fail.

```
python -m chaos cases                                list the cases; --json
python -m chaos case zombie-leader                   run one case
python -m chaos case zombie-leader --mutant          run it without the protection
python -m chaos case all                             run all cases, on one cluster
```

A case runs in one of three places:

* *Cluster*: three nodes, ZooKeeper and HBase. All connections go through Toxiproxy, and each case has its own tables.
* *Alone*: a broker, or its store, on LevelDB, in its own process.
* *Inside*: the logs of several nodes in the verifier's own process, on a table that fails at a chosen moment. A real
  server can't be made to fail so.

A **mutant** takes the protection away: it replaces one function of the product (`broker/testing/mutants.py`; the
product itself has no switch). [Guards](../internals/guards.md) lists the rules that mutants drop. `chaos/checkers/`
explains the names of violations. [Results](../results/2026-11-29-tests.md) has the last run.
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
    """Return the errors that a request can get: the leaves of the tree of classes, and its root."""
    own = [error for error in registry() if error.__module__ == BrokerError.__module__]
    leaves = [error for error in own if not _is_group(error, own)]
    return [*leaves, BrokerError]


def _section(section: str, keys: Iterator[Key]) -> str:
    doc = _first_line(type(getattr(Config(), section)))
    head = f"\n## {section}\n\n{doc}\n\n| key | flag | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{known.name}` | `{known.flag}` | {_code(as_text(known.default))} | {known.doc} |\n"
        for known in keys
    )


def _is_group(error: type[BrokerError], own: list[type[BrokerError]]) -> bool:
    """Return whether only subclasses of an error are answered: then one of them has its code, or it is the root."""
    within = [child for child in error.__subclasses__() if child in own]
    return any(child.code == error.code for child in within) or (error is BrokerError)


def _error_row(error: type[BrokerError]) -> str:
    retriable = "yes" if error.retriable else "no"
    meaning = _first_line(error)
    code = f"[`{error.code}`](../guides/troubleshooting.md#{error.code})"
    return f"| {code} | `{error.__name__}` | {error.http_status} | {error.outcome} | {retriable} | {meaning} |\n"


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
    "docs/reference/commands.md": lambda: MADE + commands_page(),
    "docs/reference/client.md": lambda: MADE + client_page(),
    "docs/reference/budgets.md": budgets_page,
    "docs/reference/access.md": lambda: MADE + access_page(),
    "docs/reference/quotas.md": lambda: MADE + quotas_page(),
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
