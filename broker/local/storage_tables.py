"""The tables of a cluster, made before its nodes start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from broker.local.servers import ServerFailed

INIT_S = 120.0


def init_storage(file: Path) -> None:
    """Make the missing tables of a configuration. Raises ServerFailed."""
    command = [sys.executable, "-m", "broker.cli", "storage", "init", "--config", str(file)]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=INIT_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as late:
        raise ServerFailed(f"making the tables: {late}") from late
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(command[2:])} said: {done.stdout}{done.stderr}")
