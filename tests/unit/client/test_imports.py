"""The client imports no module of the server."""

import json
import subprocess
import sys

import broker.client

FORBIDDEN = (
    "aiohttp",
    "click",
    "kazoo",
    "numpy",
    "orjson",
    "plyvel",
    "prometheus_client",
    "pyarrow",
    "rich",
    "structlog",
    "uvloop",
)
ALLOWED = {
    f"broker.{part}"
    for part in (
        "client",
        "wire",
        "model",
        "errors",
        "escapes",
        "clock",
        "http",
        "moments",
        "places",
        "retries",
        "secret",
        "shield",
        "operations",
        "user_code",
    )
}


def test_importing_the_client_imports_no_server_code():
    program = "import broker.client, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = json.loads(done.stdout)
    assert not [name for name in modules if name.partition(".")[0] in FORBIDDEN]
    ours = {".".join(name.split(".")[:2]) for name in modules if name.startswith("broker.")}
    assert ours <= ALLOWED
    assert "broker.client" in ours


def test_every_exported_name_exists():
    assert all(hasattr(broker.client, name) for name in broker.client.__all__)
