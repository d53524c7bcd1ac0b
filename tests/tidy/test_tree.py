"""Rules about the tree: nothing of one machine in it, a test module for every module."""

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.tidy.sources import text, tracked

# Spelled so that this file does not match itself.
MACHINE = re.compile(
    r"(?:^|[^A-Za-z0-9_./-])/(?:wor[k]|far[m]|roo[t]|hom[e])/"
    r"|(?:py[p]i|files\.python[h]osted|deb\.[d]ebian|registry\.[n]pmjs|repo1?\.[m]aven"
    r"|proxy\.[g]olang|static\.[c]rates)\.?(?:org|io|apache\.org)?/"
)

# Modules that have no test module of their own, and where they are tested instead.
TESTED_ELSEWHERE = {
    "broker/storage/ports.py": "declares ports; every implementation runs tests/contract",
    "broker/storage/cells.py": "declares a port; every implementation runs tests/contract",
    "broker/coordination/ports.py": "declares ports; every implementation runs tests/contract",
    "broker/coordination/coordinator.py": "tests/contract/test_coordinator.py, over every tree",
    "broker/coordination/locks.py": "tests/contract/test_coordinator.py, over every tree",
    "broker/coordination/members.py": "tests/contract/test_coordinator.py, over every tree",
    "broker/coordination/zookeeper.py": "tests/contract/test_zookeeper_coordinator.py",
    "broker/coordination/tree.py": "declares a port; tests/contract/test_coordinator.py",
    "broker/wire/schemas.py": "texts; every codec test parses with them",
    "broker/api/access.py": "test_dispatch.py: a refusal reaches no handler",
    "broker/api/routes.py": "test_openapi.py: every route is in the document, and the reverse",
    "broker/api/schemas.py": "texts; test_openapi.py and every reply that is checked",
    "broker/cli/chaos.py": "tests/chaos/test_run.py",
    "broker/cli/cluster.py": "tests/integration/test_local_cluster.py",
    "broker/cli/node.py": "tests/integration/test_cli.py: the commands as processes",
    "broker/cli/output.py": "test_app.py and tests/integration/test_cli.py",
    "broker/cli/publishing.py": "test_app.py and tests/integration/test_cli.py",
    "broker/cli/reading.py": "test_app.py and tests/integration/test_cli.py",
    "broker/cli/topics.py": "test_app.py and tests/integration/test_cli.py",
    "broker/client/aio.py": "tests/integration/test_client.py and tests/conformance",
    "broker/node_alone.py": "test_node.py",
    "broker/node_cluster.py": "tests/integration/test_cluster*.py: processes, killed and stopped",
    "broker/node_servers.py": "tests/integration/test_cluster*.py: the real HBase and ZooKeeper",
    "broker/cli/serving.py": "tests/integration/test_cli.py: the commands as processes",
    "broker/topics/claiming.py": "test_leaders.py and test_many_nodes.py",
    "broker/topics/finishing.py": "test_stored.py and test_leaders.py: callers that leave",
    "broker/topics/handing_over.py": "test_hand_over.py",
    "broker/topics/keyed.py": "test_dedupe.py",
    "broker/topics/leader.py": "test_leaders.py",
    "broker/topics/reading.py": "test_consuming.py",
    "broker/topics/service.py": "test_leaders.py and test_consuming.py",
    "broker/topics/settings.py": "values; every test of topics",
    "broker/topics/state.py": "test_consuming.py: waiting polls",
    "broker/topics/surroundings.py": "values; every test of topics",
    "broker/topics/waiting.py": "test_leaders.py and test_hand_over.py",
}
# Whole folders, likewise.
FOLDERS_TESTED_ELSEWHERE = {
    "broker/testing/contract/": "suites; tests/contract runs them, the wrong store included",
    "broker/testing/servers/": "real servers; tests/integration starts each of them",
    "broker/testing/cluster/": "tests/integration/test_local_cluster.py, beside own test modules",
    "broker/testing/checkers/": "tests/unit/testing/checkers: each against right and wrong histories",
    "broker/testing/appender.py": "tests/integration/test_leveldb_durability.py",
    "broker/testing/bench.py": "what tests/unit/topics stands on",
    "broker/testing/clients.py": "tests/simulation/test_one_node.py",
    "broker/testing/cluster/load.py": "tests/integration/test_cluster_faults.py",
    "broker/testing/full_disk.py": "tests/integration/test_leveldb_durability.py",
    "broker/testing/many.py": "what tests of several nodes in tests/unit/topics stand on",
    "broker/testing/members.py": "tests/unit/api/test_cluster.py",
    "broker/testing/mutations.py": "tests/unit/wire/test_mutations.py",
    "broker/testing/node.py": "tests/simulation/test_one_node.py",
    "broker/testing/one_node.py": "tests/simulation/test_one_node.py",
    "broker/testing/openapi.py": "tests/unit/api: replies that are not in the document",
    "broker/testing/process.py": "tests/integration/test_broker_kills.py",
    "broker/testing/ring.py": "what tests/unit/routing stands on",
    "broker/testing/story.py": "what tests/unit/testing/checkers stands on",
    "broker/testing/served.py": "tests/conformance",
    "broker/testing/serving.py": "what tests/unit/api stands on",
    "broker/testing/simulation/": "tests/simulation/test_cluster_seeds.py, beside own test modules",
    "broker/testing/table_appender.py": "tests/integration/test_leveldb_table.py",
    "broker/testing/workload.py": "tests/simulation/test_exploration.py",
    "broker/testing/workload_readers.py": "tests/simulation/test_exploration.py",
    "broker/testing/workloads/": "each workload by its own test module, on a simulated cluster",
}

PLAIN = tracked("*.py", "*.toml", "*.md", "*.xml", "*.java", "*.yml", "*.cfg", "Makefile", ".ci/*")
TESTS = tracked("tests/*.py")
ASLEEP = {("time", "sleep"), ("asyncio", "sleep")}


def of_a_machine(source: str) -> list[str]:
    return [line for line in source.splitlines() if MACHINE.search(line)]


def sleeps(source: str) -> list[int]:
    """Return the lines on which a test waits for time to pass."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr) in ASLEEP
    ]


def own_test_module(name: str) -> str:
    path = PurePosixPath(name)
    inner = PurePosixPath(*path.parts[1:-1])
    return str("tests/unit" / inner / f"test_{path.name}")


@pytest.mark.parametrize("name", PLAIN)
def test_no_path_of_a_machine_and_no_registry_address(name: str) -> None:
    assert of_a_machine(text(name)) == []


@pytest.mark.parametrize("name", TESTS)
def test_no_test_sleeps_to_wait(name: str) -> None:
    assert sleeps(text(name)) == [], "wait for an event, with a deadline"


@pytest.mark.parametrize("name", tracked("broker/*.py"))
def test_a_module_has_its_test_module(name: str) -> None:
    exempt = name in TESTED_ELSEWHERE or name.startswith(tuple(FOLDERS_TESTED_ELSEWHERE))
    is_private = PurePosixPath(name).name.startswith("__")
    assert exempt or is_private or own_test_module(name) in TESTS, f"write {own_test_module(name)}"


@pytest.mark.parametrize("parts", [("cd /wo", "rk/x"), ('"/ro', 'ot/x"'), ("//py", "pi.org/x")])
def test_the_rule_finds_a_machine(parts: tuple[str, str]) -> None:
    assert of_a_machine("".join(parts))


def test_the_rules_find_what_they_forbid() -> None:
    assert of_a_machine("see the docs/work/notes") == []
    assert sleeps("import time\ntime.sleep(1)\n") == [2]
    assert sleeps("async def f():\n    await asyncio.sleep(0.1)\n") == [2]
    assert sleeps("clock.sleep(1)\n") == []
    assert own_test_module("broker/storage/keys.py") == "tests/unit/storage/test_keys.py"
