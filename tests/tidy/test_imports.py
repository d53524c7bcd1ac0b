"""The import contracts hold, and each of them can fail."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, text, tracked

LINTER = Path(sys.executable).with_name("lint-imports")
CLIENT_RESTS_ON = {
    "moments",
    "operations",
    "places",
    "retries",
    "secret",
    "user_code",
    "shield",
    "wire",
    "model",
    "errors",
    "escapes",
    "clock",
    "http",
    "client",
}
REST_ON_CLIENT = {"spark", "sql", "streams", "transfer", "bench", "rowlog", "cli"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its contracts."""
    shutil.copytree(
        ROOT / "broker", tmp_path / "broker", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [LINTER, "--no-cache", "--no-logo"]
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )


def test_the_contracts_hold(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout


FORBIDDEN = [
    (
        "wire/__init__.py",
        "import broker.topics.log_keys",
        "Layers",
        "broker.wire -> broker.topics.log_keys",
    ),
    (
        "model.py",
        "def late():\n    import broker.topics.log_keys",
        "Layers",
        "broker.model -> broker.topics.log_keys",
    ),
    (
        "client/__init__.py",
        "import broker.storage.keys",
        "The client rests on",
        "broker.client -> broker.storage.keys",
    ),
    (
        "http/outbound.py",
        "import aiohttp",
        "The client rests on",
        "broker.http.outbound -> aiohttp",
    ),
    (
        "client/__init__.py",
        "import broker.http.budget",
        "The client has the asking side",
        "broker.client -> broker.http.budget",
    ),
    (
        "spark/format_options.py",
        "import broker.topics.log_keys",
        "Spark, stream jobs",
        "broker.spark.format_options -> broker.topics.log_keys",
    ),
    ("topics/log_keys.py", "import broker.testing", "The test kit", "broker.topics.log_keys"),
    ("cli/nodes/chaos.py", "import chaos.run", "The verifier", "broker.cli.nodes.chaos -> chaos"),
    ("topics/log_keys.py", "import time", "Pure modules", "broker.topics.log_keys -> time"),
]
"""A module, a line that breaks a contract there, the contract, and the linter's name for the line."""


def test_every_forbidden_import_is_found(copy: Path) -> None:
    for module, line, _, _ in FORBIDDEN:
        changed = copy / "broker" / module
        changed.write_text(changed.read_text() + "\n" + line + "\n")
    result = lint(copy)
    broken = [found for found in result.stdout.splitlines() if " BROKEN" in found]
    assert result.returncode == 1, result.stdout
    missed = [
        (contract, told)
        for _, _, contract, told in FORBIDDEN
        if told not in result.stdout or not any(found.startswith(contract) for found in broken)
    ]
    assert missed == [], result.stdout


def test_every_package_is_allowed_or_forbidden_for_the_client() -> None:
    contracts = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (contract, _) = [one for one in contracts if one.get("source_modules") == ["broker.client"]]
    parts = {Path(name).parts[1].removesuffix(".py") for name in tracked("broker/*.py")}
    forbidden = {name.removeprefix("broker.") for name in contract["forbidden_modules"]}
    assert parts - CLIENT_RESTS_ON - REST_ON_CLIENT - forbidden - {"__init__"} == set()


def test_every_package_has_a_layer() -> None:
    contracts = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["type"] == "layers"]
    layered = set("".join(" ".join(contract["layers"]).translate({40: 32, 41: 32})).split())
    parts = {Path(name).parts[1].removesuffix(".py") for name in tracked("broker/*.py")}
    aside = {
        "__init__",
        "client",
        "testing",
        "spark",
        "sql",
        "streams",
        "transfer",
        "bench",
        "rowlog",
    }
    assert parts - layered - aside == set()
