"""Describe the measurement: versions, processor, kernel, date."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from broker.local.servers import ServerMissing, jvm

_PACKAGES = ("tms-broker", "aiohttp", "uvloop", "plyvel", "aiokafka", "redis", "hiredis")


def described() -> dict[str, Any]:
    """Return the description of machine and software, which belongs beside every figure."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _first(_said("java", "--version"), r"\d[\w.+-]*"),
        "packages": {name: _package(name) for name in _PACKAGES},
        "servers": {
            "redis": _first(_said("redis-server", "--version"), r"v=([\d.]+)"),
            "kafka": _jar("kafka", "kafka-clients"),
            "cdap-tms": _jar("tms", "cdap-tms"),
            "hbase": _jar("hbase", "hbase-thrift"),
        },
    }


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, shortened."""
    return _said("git", "-C", str(checkout), "rev-parse", "--short", "HEAD")


def _said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group(found.lastindex or 0) if found else ""


def _processor() -> str:
    return _first(Path("/proc/cpuinfo").read_text(), r"model name\s*:\s*(.+)")


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _jar(server: str, name: str) -> str:
    try:
        listed = (jvm.installed(server) / "classpath").read_text()
    except ServerMissing:
        return ""
    return _first(listed, rf"{name}-(\d[\w.]*?)\.jar")
