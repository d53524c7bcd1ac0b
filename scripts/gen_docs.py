"""Write the pages that are made from the code: ``make docs``. A test checks that they are current."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from broker.config import Config, Key, iter_keys
from broker.errors import BrokerError, registry
from broker.settings import as_text
from chaos.cases import CASES, Case

ROOT = Path(__file__).resolve().parent.parent
MADE = "<!-- Made by scripts/gen_docs.py (make docs): change the code, not this page. -->\n"

_CONFIG_HEAD = """
# Configuration

A value comes from, later ones winning: the default, a TOML file (`broker serve --config FILE`; a table
per section), the environment, a flag. Unknown keys are errors. `broker config` prints what is in force
and where each value came from.

```toml
[server]
port = 9090

[limits]
body_bytes_max = 1048576
```
"""

_ERRORS_HEAD = """
# Errors

A request that names `application/json` in `Accept`, or is of that type, gets errors as
`{"code", "message", "retriable", "outcome"}`; all others get the message as plain text. *Refused* means
that the request has had no effect and never will; *unknown* that nobody can say. *Retriable* means that
the same request, sent again unchanged, is both safe and useful.

| code | status | outcome | retriable | meaning |
|---|---|---|---|---|
"""

_GUARDS_HEAD = """
# Guards

A guard is one check in one place that keeps messages safe (`broker/guards.py`). Tests can switch it off,
under `BROKER_TESTING=1` alone, and a node that runs without one says so. A guard whose absence nothing
notices is not tested: each is taken away in runs of the [simulated cluster](simulation.md), and the checkers,
which see nothing but what clients were told, must find what goes wrong. What storage does in such a run is in
`broker/testing/adversary.py`, what is checked in `broker/testing/checkers/`.

Some are found soon in random seeds of three virtual minutes, as `make sim` draws them; for the others there
are schedules, in which what is rare happens soon. The count is of the first seed that shows anything, from
seed 1 on; it changes with the code.

```sh
python -m broker.testing.simulation.directed --random 200 dedupe      after how many random seeds
python -m broker.testing.simulation.directed dedupe                   what the schedule shows
python -m broker.testing.simulation.directed dedupe --with            the same with the guard in force
```

| guard | what it protects | what is found without it | after how many random seeds |
|---|---|---|---|
"""

_EXPLORED_HEAD = """
## In one topic's storage

Each is also taken away in a run of the exploration: two nodes' storage of one topic, with nothing above it.

A run is a plan and a seed, and repeats exactly while the code is the same; the test also takes the seeds
that follow. With all guards in force `make test` makes some runs of other seeds each day, `make test-all` thousands,
and none may show anything.

| guard | without it | plan, seed | found as |
|---|---|---|---|
"""


_CLUSTER_GUARDS_HEAD = """
## In the whole cluster

The schedules: nodes, clients, routing, and the network between them. One is a workload, a seed, the kinds of
fault that come, and what storage does; each is about a minute of virtual time. The test takes the guard away
and looks for the violation by name, in the seeds from the recorded one on; the seed that shows it must show
nothing wrong with the guard in force.

| guard | without it | workload, seed: faults | found as |
|---|---|---|---|
"""


def guards_page() -> str:
    """Return ``docs/internals/guards.md``."""
    table = tomllib.loads((ROOT / "tests/simulation/guards.toml").read_text(encoding="utf-8"))
    explored = [
        f"| `{row['name']}` | {row['without_it']} | {row['plan']}, {row['seed']} "
        f"| `{row['violation']}` |\n"
        for row in table["guard"]
    ]
    elsewhere = [
        f"| `{row['name']}` | {row['without_it']} | `{row['test']}` | {_found_as(row)} |\n"
        for row in table["elsewhere"]
    ]
    example = table["guard"][0]
    return "".join(
        [
            MADE,
            _GUARDS_HEAD,
            *_all_guards(),
            _EXPLORED_HEAD,
            *explored,
            (
                "\nTo see one:\n\n```sh\npython -m broker.testing.exploration "
                f"--without {example['name']} --plan {example['plan']} --seed {example['seed']}\n```\n"
            ),
            "\nOther tests take these away:\n\n",
            "| guard | without it | test | found as |\n|---|---|---|---|\n",
            *elsewhere,
            *_cluster_guards(),
        ]
    )


def _of_clusters() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads((ROOT / "tests/simulation/cluster_guards.toml").read_text("utf-8"))


def _all_guards() -> Iterator[str]:
    table = _of_clusters()
    scheduled = {row["name"]: row["violation"] for row in table["guard"]}
    elsewhere = {row["name"]: row["test"] for row in table["elsewhere"]}
    for row in table["random"]:
        name, found = row["name"], row.get("found", [])
        words = dict.fromkeys([*found, *filter(None, [scheduled.get(name)])])
        shown = (
            ", ".join(f"`{word}`" for word in words) or f"nothing in a cluster; `{elsewhere[name]}`"
        )
        yield f"| `{name}` | {row['protects']} | {shown} | {_seeds(row)} |\n"


def _seeds(row: dict[str, Any]) -> str:
    """Return after how many random seeds a guard was missed."""
    if "seeds" not in row:
        return "not run"
    return str(row["seeds"]) if row.get("found") else f"none in {row['seeds']}"


def _cluster_guards() -> list[str]:
    table = _of_clusters()
    return [
        _CLUSTER_GUARDS_HEAD,
        *(
            f"| `{row['name']}` | {row['without_it']} | {_schedule(row)} | `{row['violation']}` |\n"
            for row in table["guard"]
        ),
        "\nThese it does not show:\n\n| guard | why not | shown in |\n|---|---|---|\n",
        *(f"| `{row['name']}` | {row['why']} | `{row['test']}` |\n" for row in table["elsewhere"]),
    ]


def _schedule(row: dict[str, Any]) -> str:
    """Return what a schedule does, in a few words."""
    faults = [*row.get("faults", ()), *(kind for kind, *_ in row.get("script", ()))]
    storage = [name for name in row["bias"] if not name.endswith("_ms")]
    workload = row.get("workload", "log")
    return f"{workload}, {row['seed']}: {', '.join([*dict.fromkeys(faults), *storage]) or 'calm'}"


def _found_as(row: dict[str, str]) -> str:
    return f"`{row['violation']}`" if "violation" in row else "a failed assertion"


_CASES_HEAD = """
# Failure cases

Ways in which the most trusted brokers were seen to fail, each played on purpose by the verifier. A case proves
that its fault happened (if not, that says nothing: exit 2), passes (exit 0), and fails when what protects
is taken away (exit 1, and the verdict names what is wrong): a test that can't fail shows nothing.

```
python -m chaos cases                                list them; --json
python -m chaos case zombie-leader                   play one
python -m chaos case zombie-leader --mutant          the same without what protects
python -m chaos case all                             all of them, on one cluster
```

Where they are played: *cluster*: three nodes, ZooKeeper and HBase, every connection through Toxiproxy, on
tables of its own for each case; *alone*: a broker, or its store, over LevelDB, as processes; *inside*: the
logs of several nodes in the verifier's own process, over a table that does on demand what no real server can
be made to do at a chosen moment. What protects is taken away by a **mutant**: the product with one function swapped
(`broker/testing/mutants.py`; the product itself has no switch). The rules that they drop are in
[guards](internals/guards.md), what the names of violations mean is in `broker/testing/checkers/`. How the cases went
over the storage before pages: [22 November 2026](results/2026-11-22-cases.md).

| # | case | what happens | what protects | mutant | without it the verdict says |
|---|---|---|---|---|---|
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
    return f"| `{error.code}` | {error.http_status} | {error.outcome} | {retriable} | {meaning} |\n"


def cases_page() -> str:
    """Return ``docs/chaos-cases.md``."""
    rows = "".join(_case_row(case) for case in CASES.values())
    return f"{MADE}{_CASES_HEAD}{rows}"


def _case_row(case: Case) -> str:
    found = ", ".join(f"`{name}`" for name in sorted(case.violations))
    without = f"{case.without} ({found})" if found else case.without
    return (
        f"| {case.number} | `{case.name}` ({case.where}) | {case.title}. {case.happens} | {case.protects} "
        f"| `{case.mutant}` | {without} |\n"
    )


def _first_line(documented: type) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].replace("``", "`")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/config.md": config_page,
    "docs/reference/errors.md": errors_page,
    "docs/internals/guards.md": guards_page,
    "docs/chaos-cases.md": cases_page,
}


def main() -> int:
    """Write every page."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
