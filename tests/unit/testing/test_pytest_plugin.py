"""The fixtures for the tests of users, in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGIN = "broker.testing.pytest_plugin"


def run(folder: Path, tests: str, *, conftest: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_shop.py").write_text(tests)
    (folder / "conftest.py").write_text(conftest)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:broker",
        "-p",
        PLUGIN,
        "-p",
        "no:cacheprovider",
    ]
    more = ["-p", "no:schemathesis", "--rootdir", str(folder), "-c", "/dev/null", str(folder)]
    return subprocess.run(
        [*command, *more], capture_output=True, text=True, check=False, cwd=ROOT, timeout=100
    )


def test_a_session_has_a_broker_of_its_own(tmp_path: Path) -> None:
    tests = """
import asyncio
from broker.client import Client

def test_one(broker_client):
    broker_client.create_topic("orders")
    broker_client.publish("orders", "one")

def test_two(broker_client, broker_url):
    assert [m.payload for m in broker_client.poll("orders")] == [b"one"]
    async def main():
        async with Client(broker_url) as client:
            return [m.payload for m in await client.poll("orders")]
    assert asyncio.run(main()) == [b"one"]
    assert broker_url.startswith("http://127.0.0.1:")
"""
    done = run(tmp_path, tests)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_without_the_server_the_fixture_names_the_extra_and_other_tests_run(tmp_path: Path) -> None:
    conftest = "import sys\nsys.modules['broker.testing.broker_process'] = None\n"
    tests = "def test_other(): pass\ndef test_broker(broker_url): pass\n"
    done = run(tmp_path, tests, conftest=conftest)
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "tms-broker[server]" in done.stdout


def test_the_plugin_loads_no_part_of_the_broker_until_a_test_asks() -> None:
    source = f"""
import pytest, sys
before = set(sys.modules)
import {PLUGIN}
print(*set(sys.modules) - before)"""
    loaded = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert set(loaded.stdout.split()) == {"broker", "broker.testing", PLUGIN}


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"broker": PLUGIN}


def test_settings_of_the_shell_do_not_reach_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_SERVER__PORT", "no port")
    monkeypatch.setenv("BROKER_LIMITS__BODY_BYTES_MAX", "0")
    done = run(tmp_path, "def test_one(broker_client): broker_client.create_topic('t')\n")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
