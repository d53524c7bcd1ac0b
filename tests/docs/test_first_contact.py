"""A new user's commands work in a fresh checkout, with only ``make``, Python and a shell on the path.

The commands of the first pages run one after the other in one shell, in the folder of the checkout, beside a
broker that ``make serve`` started. Only the broker's port differs, so that two runs don't collide.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local.servers.process import free_ports
from tests.tidy.sources import ROOT, tracked

PAGES = ["README.md", "docs/start/first-ten-minutes.md"]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"make demo", "make serve", "make pipeline"}
"""``test_commands`` runs these commands. Here the fixture ``url`` runs ``make serve``."""
LATER = "elsewhere/bin/pip install 'tms-broker[arrow]'"
"""The README's command for one more extra."""
PRINTED = "127.0.0.1:8080"
DEADLINE_S = 600


def typed(page: str) -> list[str]:
    """Return all commands of a page, in order."""
    blocks = CONSOLE.findall((ROOT / page).read_text(encoding="utf-8"))
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the tracked files in their present state."""
    for name in tracked("*"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    return tmp_path


@pytest.fixture
def environment(checkout: Path) -> dict[str, str]:
    """A user's environment: without this project's path, imports and configuration."""
    own = ("BROKER_", "PYTHON", "VIRTUAL_ENV", "PYTEST", "XDG_", "MAKE", "MFLAGS")
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(own)}
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join(one for one in kept["PATH"].split(os.pathsep) if one != here)
    return {**kept, "PATH": path, "XDG_CONFIG_HOME": str(checkout / "config")}


@pytest.fixture
def url(checkout: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a broker that ``make serve`` set up and started."""
    (port,) = free_ports(1)
    with subprocess.Popen(
        ["make", "--no-print-directory", "serve", f"ARGS=--port {port}"],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert any(line.startswith("broker ready at ") for line in process.stdout)
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)


@pytest.mark.nightly
@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_first_pages_work_as_typed(
    checkout: Path, environment: dict[str, str], url: str
) -> None:
    commands = [line for page in PAGES for line in typed(page) if line not in ELSEWHERE]
    assert len(commands) > 20
    assert commands[0] == ". .venv/bin/activate"
    assert "make wheel" in commands
    script = "set -e -x -o pipefail\n" + "\n".join([*commands, LATER]).replace(PRINTED, url)
    script = script.replace("curl ", "curl --fail --silent --show-error ")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        env={**environment, "BROKER_URL": f"http://{url}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
