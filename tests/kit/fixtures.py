"""A pytest plugin: real servers, one of each for a whole session.

Put ``pytest_plugins = ["tests.kit.fixtures"]`` into the topmost conftest. The first test that asks for a server
starts it. If a server is not installed on this machine, its tests are skipped with the reason. In CI (``CI=true``)
they fail instead, because a skip there would be an untested release.

Tests that start their own server, to kill it, carry the marker ``server(name)``. The same rule holds for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from broker.local.servers import ServerFailed, ServerMissing
from broker.testing.hbase_server import HBaseServer
from tests.kit.servers import JavaClient, TmsServer
from tests.kit.servers.recipes import ALL


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for projects that use this plugin."""
    config.addinivalue_line("markers", "server(name): needs a real server, see tests.kit.servers")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a test if a server of its ``server`` marker is not installed."""
    for mark in item.iter_markers("server"):
        for name in mark.args:
            require(name)


def require(name: str) -> None:
    """Skip this test, or in CI fail it, unless the server ``name`` can be started here."""
    try:
        ALL[name].check(name)
    except ServerMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def tms_server() -> Iterator[TmsServer]:
    """CDAP's own messaging server; every test uses its own namespace or topics."""
    require("tms")
    with TmsServer() as server:
        yield server


@pytest.fixture(scope="session")
def java_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """CDAP's own Java client; ``at(port)`` returns its calls for one server."""
    require("tms")
    log_path = tmp_path_factory.mktemp("java-client") / "client.log"
    with JavaClient(log_path=log_path) as client:
        yield client


@pytest.fixture(scope="session")
def shared_hbase() -> Iterator[HBaseServer]:
    """The server of ``hbase_server``; that fixture restarts it after a failure."""
    require("hbase")
    # No test waits for a session to end. HBase stops itself if its session expires, as happens on a slow machine.
    with HBaseServer(overrides={"zookeeper.session.timeout": "60000"}) as server:
        yield server


@pytest.fixture
def hbase_server(shared_hbase: HBaseServer) -> HBaseServer:
    """HBase with both Thrift gateways; every test uses its own tables."""
    try:
        shared_hbase.check()
    except ServerFailed:
        shared_hbase.start()  # This test fails, and later tests have a new server.
        raise
    return shared_hbase
