"""Each third-party package has a door, the modules that may import it. So it can be replaced in one place."""

import ast
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.tidy.sources import text, tracked

ANYWHERE = "broker/*"

# Patterns of fnmatch; its * also matches folders.
DOORS = {
    "aiohttp": [
        "broker/http/body.py",
        "broker/http/documents.py",
        "broker/http/drain.py",
        "broker/http/exchange.py",
        "broker/http/inbound.py",
        "broker/http/reply.py",
        "broker/http/server.py",
    ],
    "click": [
        "broker/cli/*",
        "chaos/cli.py",
        "chaos/*commands.py",
        "chaos/verdict_text.py",
    ],
    "fastavro": ["broker/transfer/avro_file.py"],
    "google_crc32c": ["broker/storage/leveldb/torn_tail.py"],
    "happybase": ["broker/rowlog/*", "chaos/rowlog_worker.py"],
    "httptools": ["broker/http/outbound.py"],
    "jwt": ["broker/access/json_web_tokens.py"],
    "kazoo": ["broker/coordination/zookeeper.py", "chaos/sessions.py"],
    "matplotlib": ["chaos/plots.py"],
    "numpy": ["broker/api/messages/arrow.py"],
    "orjson": ["broker/api/*", "broker/http/reply.py", "broker/streams/*"],
    "plyvel": ["broker/storage/leveldb/*"],
    "prometheus_client": ["broker/metrics.py"],
    "pandas": ["broker/client/dataframes.py"],
    "polars": ["broker/client/dataframes.py"],
    "pyarrow": [
        "broker/api/messages/arrow.py",
        "broker/client/bulk.py",
        "broker/client/dataframes.py",
        "broker/transfer/avro_file.py",
        "broker/transfer/parquet_file.py",
        "broker/spark/*",
        "broker/streams/passes.py",
    ],
    "pytest": ["broker/testing/pytest_plugin.py"],
    "pyspark": ["broker/spark/*", "broker/streams/*"],
    "rich": ["broker/cli/*"],
    "sqlalchemy": ["broker/sql/*"],
    "structlog": ["broker/logs.py"],
    "tenacity": ["broker/retries.py"],
    "toxiproxy": ["chaos/toxiproxy.py"],
    "thriftpy2": ["broker/transactions/tephra_frames.py"],
    "typing_extensions": [ANYWHERE, "chaos/*"],
    "uvloop": ["broker/node/node_process.py"],
}

# Packages whose import name differs from their installed name.
IMPORTED_AS = {"PyJWT": "jwt", "toxiproxy_python": "toxiproxy"}
# Packages of which the product uses a file and imports no module.
FILES_OF = {"libfaketime": "chaos/clocks.py"}
# Packages that another package needs for our use of it and does not require itself.
NEEDED_BY = {"protobuf": "pyspark"}


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
    """Return the packages that a module imports and that is not their door."""
    return [
        package
        for package in foreign_imports(source)
        if not any(fnmatch.fnmatch(name, door) for door in DOORS.get(package, []))
    ]


def test_packages_are_imported_at_their_doors() -> None:
    found = [
        f"{name}: {package}"
        for name in tracked("broker/*.py", "chaos/*.py")
        for package in strays(name, text(name))
    ]
    assert found == [], "use the module that is its door, or add a door to DOORS"


def test_every_door_is_declared_and_every_declared_package_of_the_product_has_a_door() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    product = [project["dependencies"], *(extras[extra] for extra in extras if extra != "dev")]
    declared = {package for requirements in product for package in packages(requirements)}
    assert declared - set(DOORS) - set(FILES_OF) - set(NEEDED_BY) == set()


def test_every_extra_requires_only_packages_that_are_imported() -> None:
    imported = {
        package
        for name in tracked("broker/*.py", "chaos/*.py", "pyspark_tms.py")
        for package in foreign_imports(text(name))
    }
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    unused = {
        extra: packages(requirements) - imported - set(FILES_OF) - set(NEEDED_BY)
        for extra, requirements in extras.items()
        if extra != "dev"
    }
    assert {extra: found for extra, found in unused.items() if found} == {}


def packages(requirements: list[str]) -> set[str]:
    """Return the import names of required packages, without this project."""
    names = {re.split(r"[\[><=]", line)[0].replace("-", "_") for line in requirements}
    return {IMPORTED_AS.get(name, name) for name in names} - {"tms_broker"}


@pytest.mark.parametrize(
    "source",
    [
        "import plyvel\n",
        "from kazoo.client import KazooClient\n",
        "def f():\n    import requests\n",
    ],
)
def test_the_rule_finds_a_stray_import(source: str) -> None:
    assert strays("broker/topics/log_keys.py", source)
    assert strays("broker/storage/leveldb/database.py", "import plyvel\n") == []


TERMINAL = re.compile(
    r"click\.s?echo\(|(?<!console.)\bprint\(|sys\.std(out|err)\.(buffer\.)?write\(|\bText\("
)
TERMINAL_DOORS = {
    "broker/cli/command/output.py",
    "broker/cli/command/completion.py",  # A script of its own, and names that it escapes.
    "broker/cli/messages/message_options.py",
    "broker/local/launcher.py",
    "broker/local/servers/downloads.py",
    "chaos/verdict_text.py",
}
"""The modules that write to a terminal. They escape the texts of others."""


def test_text_reaches_a_terminal_through_the_modules_that_escape_it() -> None:
    found = [
        f"{name}: {match[0]}"
        for name in tracked(
            "broker/cli/*.py", "broker/local/*.py", "chaos/*commands.py", "chaos/cli.py"
        )
        if name not in TERMINAL_DOORS
        for match in TERMINAL.finditer(text(name))
    ]
    assert found == [], "write with broker.cli.command.output or chaos.verdict_text"


def test_the_libraries_log_by_loggers_that_escape_the_texts_of_others() -> None:
    sources = tracked(
        "broker/client/*.py", "broker/sql/*.py", "broker/streams/*.py", "broker/spark/*.py"
    )
    assert [name for name in sources if "logging.getLogger(" in text(name)] == []
