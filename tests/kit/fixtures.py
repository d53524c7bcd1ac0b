"""A pytest plugin: real servers, one of each for a whole session.

Put ``pytest_plugins = ["tests.kit.fixtures"]`` into the topmost conftest. The servers are
started by the first test that asks. One that is not on this machine skips its tests with the reason;
in CI (``CI=true``) it fails them, because there a skip would be an untested release.

Tests that start a server of their own, to kill it, carry the marker ``server(name)`` instead, for
the same rule.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from broker.local.servers import HBaseServer, ServerFailed, ServerMissing
from tests.kit.servers import JavaClient, TmsServer
from tests.kit.servers.recipes import ALL


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for projects that use this plugin."""
    config.addinivalue_line("markers", "server(name): needs a real server, see broker.testing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a test whose ``server`` marker names what is not here."""
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
    """CDAP's own messaging server; every test takes a namespace or topics of its own."""
    require("tms")
    with TmsServer() as server:
        yield server


@pytest.fixture(scope="session")
def java_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """CDAP's own Java client; ``at(port)`` gives its calls for one server."""
    require("tms")
    log_path = tmp_path_factory.mktemp("java-client") / "client.log"
    with JavaClient(log_path=log_path) as client:
        yield client


@pytest.fixture(scope="session")
def shared_hbase() -> Iterator[HBaseServer]:
    """What ``hbase_server`` gives, which looks after it."""
    require("hbase")
    # Nobody waits for its sessions to end, and HBase ends itself where a slow machine has them end.
    with HBaseServer(overrides={"zookeeper.session.timeout": "60000"}) as server:
        yield server


@pytest.fixture
def hbase_server(shared_hbase: HBaseServer) -> HBaseServer:
    """HBase with both Thrift gateways; every test takes tables of its own."""
    try:
        shared_hbase.check()
    except ServerFailed:
        shared_hbase.start()  # One test tells of it, and the others go on.
        raise
    return shared_hbase
