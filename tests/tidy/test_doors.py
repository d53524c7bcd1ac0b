"""One door per third-party package: what is imported in one place can be replaced in one place."""

import ast
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.tidy.sources import text, tracked

ANYWHERE = "broker/*"
TEST_KIT = "broker/testing/*"

# Patterns as of fnmatch, whose * also spans folders.
DOORS = {
    "aiohttp": ["broker/api/*", "broker/client/transport.py", "broker/net.py", TEST_KIT],
    "async_solipsism": [TEST_KIT],
    "click": [
        "broker/cli.py",
        "broker/cli/*",
        "chaos/cli.py",
        "chaos/*command.py",
        "chaos/telling.py",
    ],
    "httptools": ["broker/net.py"],
    "hypothesis": [TEST_KIT],
    "jsonschema": [TEST_KIT],
    "kazoo": ["broker/coordination/zookeeper.py", "chaos/sessions.py"],
    "matplotlib": ["chaos/plots.py"],
    "multidict": [TEST_KIT],  # Of aiohttp.
    "numpy": ["broker/api/arrow.py"],
    "orjson": ["broker/api/*"],
    "plyvel": ["broker/storage/leveldb/*"],
    "prometheus_client": ["broker/metrics.py"],
    "psutil": [TEST_KIT],
    "pandas": ["broker/client/tables.py"],
    "polars": ["broker/client/tables.py"],
    "pyarrow": [
        "broker/api/arrow.py",
        "broker/client/bulk.py",
        "broker/client/tables.py",
        "broker/spark/*",
    ],
    "pyspark": ["broker/spark/*", "broker/streams/*"],
    "pytest": [TEST_KIT],
    "rich": ["broker/cli.py", "broker/cli/*"],
    "structlog": ["broker/logs.py"],
    "tenacity": ["broker/routing/*"],
    "typing_extensions": [ANYWHERE, "chaos/*"],
    "uvloop": ["broker/node.py", "broker/cli.py", "broker/cli/*"],
    "yarl": ["broker/client/transport.py", TEST_KIT],  # Of aiohttp.
}


def foreign_imports(source: str) -> Iterator[str]:
    """Yield the third-party packages that a module imports."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            package = name.partition(".")[0]
            if package not in sys.stdlib_module_names and package not in (
                "broker",
                "chaos",
                "__future__",
            ):
                yield package


def strays(name: str, source: str) -> list[str]:
    """Name the packages that come in by another way than their door."""
    return [
        package
        for package in foreign_imports(source)
        if not any(fnmatch.fnmatch(name, door) for door in DOORS.get(package, []))
    ]


def test_packages_come_in_by_their_doors() -> None:
    found = [
        f"{name}: {package}"
        for name in tracked("broker/*.py", "chaos/*.py")
        for package in strays(name, text(name))
    ]
    assert found == [], "use the module that is its door, or open one in DOORS"


def test_every_door_is_declared_and_every_declared_package_of_the_product_has_a_door() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    product = [
        project["dependencies"],
        extras["server"],
        extras["arrow"],
        extras["cluster"],
        extras["spark"],
    ]
    declared = {
        re.split(r"[\[><=]", requirement)[0].replace("-", "_")
        for requirements in product
        for requirement in requirements
    } - {"tms_broker"}
    assert declared - set(DOORS) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import plyvel\n",
        "from kazoo.client import KazooClient\n",
        "def f():\n    import requests\n",
    ],
)
def test_the_rule_finds_a_stray_import(source: str) -> None:
    assert strays("broker/topics/ids.py", source)
    assert strays("broker/storage/leveldb/database.py", "import plyvel\n") == []
