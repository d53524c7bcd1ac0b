"""The wheel that ``make wheel`` builds is complete, and the documented commands install it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from broker import __version__
from tests.integration.installations import PROJECT, ROOT, run, surroundings
from tests.tidy.sources import text, tracked

NAME = f"tms_broker-{__version__}-py3-none-any.whl"
PAGES = ["README.md", *tracked("docs/*.md")]


def pip(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as ``make wheel`` does."""
    assert "wheel --no-deps --wheel-dir dist ." in text("Makefile")
    folder = tmp_path_factory.mktemp("dist")
    pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    return folder / NAME


@pytest.fixture
def installed(wheel: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An interpreter whose packages are the wheel's, and those that an extra asks for."""
    folder = tmp_path / "installed"
    surroundings(folder, request.param)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    return python


def test_the_wheel_has_all_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert set(tracked("broker/*", "chaos/*", "pyspark_tms.py")) - packed == set()
    assert {name.partition("/")[0] for name in packed} == {"broker", "chaos", "pyspark_tms.py"}


@pytest.mark.parametrize("installed", [()], indirect=True, ids=["base"])
def test_the_base_has_the_client_and_says_how_to_get_the_command(installed: Path) -> None:
    done = run(installed, "-c", "import broker.client as c; print(c.Client.__module__, c.__file__)")
    assert done.returncode == 0, done.stderr
    assert str(installed.parents[1]) in done.stdout
    assert "No module named 'pyspark'" in run(installed, "-c", "import pyspark_tms").stderr
    told = run(installed, str(installed.with_name("broker")), "--version")
    assert told.returncode == 1
    assert f"{installed} -m pip install 'tms-broker[server]'" in told.stderr


@pytest.mark.parametrize("installed", [("server",)], indirect=True, ids=["server"])
def test_the_extra_server_has_the_command(installed: Path) -> None:
    told = run(installed, str(installed.with_name("broker")), "--version")
    assert (told.returncode, told.stdout) == (0, f"broker, version {__version__}\n"), told.stderr


@pytest.mark.parametrize("installed", [("spark",)], indirect=True, ids=["spark"])
def test_the_extra_spark_has_the_format(installed: Path) -> None:
    done = run(installed, "-c", "import pyspark_tms; print(pyspark_tms.DefaultSource.name())")
    assert (done.returncode, done.stdout) == (0, "tms\n"), done.stderr


def test_the_readme_names_every_extra() -> None:
    install = text("README.md").partition("\n## Install\n")[2].partition("\n## ")[0]
    extras = set(PROJECT["optional-dependencies"]) - {"dev"}
    assert extras - set(re.findall(r"^\| `(\w+)` \|", install, re.MULTILINE)) == set()


def test_the_install_commands_of_pages_name_existing_targets() -> None:
    """No index has the package, so every command names the wheel, an existing extra, or the checkout."""
    for page in PAGES:
        for line in text(page).splitlines():
            for asked in re.findall(r"pip install ('[^']*'|\"[^\"]*\"|[^\s`]+)", line):
                target, _, extras = asked.strip("'\"").rstrip("]").partition("[")
                assert Path(target).name in {NAME, "tms-broker"}, f"{page}: {line}"
                assert target != "tms-broker" or extras, f"{page}: {line}"
                assert set(filter(None, extras.split(","))) <= set(
                    PROJECT["optional-dependencies"]
                ), f"{page}: {line}"
