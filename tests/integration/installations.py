"""Make environments that have exactly the packages of an extra.

They are real environments (``venv``). Links lead to the packages of the present environment that the extra requires,
and to their requirements. So no index is needed. Packages of other extras are missing, as at a user's installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEADLINE_S = 120


def asked_for(extras: Iterable[str]) -> set[str]:
    """Return the names of the packages that an installation with these extras has."""
    found: set[str] = set()
    open_ends = [Requirement(line) for line in PROJECT["dependencies"]]
    open_ends += of_extras(extras)
    while open_ends:
        needed = open_ends.pop()
        name = canonicalize_name(needed.name)
        if name == "tms-broker":
            open_ends += of_extras(needed.extras)
            continue
        chosen = needed.extras or {""}
        if name in found and not needed.extras:
            continue
        found.add(name)
        for line in metadata.requires(name) or ():
            below = Requirement(line)
            if below.marker is None or any(below.marker.evaluate({"extra": e}) for e in chosen):
                open_ends.append(below)
    return found


def of_extras(extras: Iterable[str]) -> list[Requirement]:
    lines = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


def surroundings(folder: Path, extras: Iterable[str]) -> Path:
    """Make an environment with the requirements of these extras, without the package itself.

    Returns its folder of packages.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    for name in asked_for(extras):
        for file in metadata.files(name) or ():
            top = file.parts[0]
            if top in {"..", "__pycache__"} or (packages / top).is_symlink():
                continue
            (packages / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return packages


def installation(folder: Path, extras: Iterable[str]) -> Path:
    """Make an environment with the package of this checkout and these extras; return its interpreter."""
    packages = surroundings(folder, extras)
    for name in ("broker", "chaos", "pyspark_tms.py"):
        (packages / name).symlink_to(ROOT / name)
    return folder / "bin" / "python"


def run(python: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an installation, outside of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, "-P", *words],
        cwd=python.parents[1],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
