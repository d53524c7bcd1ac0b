"""docker-compose.cluster.yml matches the launcher of a local cluster.

There is no container engine here. So docker-compose itself validates the file. The tests compare each command, setting,
file and port with ``broker.local.plan`` for the same addresses. They run each health check against a process of a local
cluster that the same plan has started.
"""

import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.api.origins import names_of
from broker.config.sections import iter_keys
from broker.config.sources import load, parse
from broker.local import LocalCluster, ProcessKind, Sizes
from broker.local.launcher import FIRST_PORT
from broker.local.plan import (
    ClusterLayout,
    Folders,
    ListenAddress,
    Program,
    common_settings,
    hbase_site,
    java_options,
    node_settings,
    programs,
    zoo_cfg,
)
from broker.local.servers import free_ports, hbase, zookeeper
from broker.testing.local_state import state_of
from chaos import toxiproxy_server as toxiproxy
from chaos.toxiproxy_server import ToxiproxyServer
from tests.kit.fixtures import require
from tests.kit.servers import compose

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

DEADLINE_S = 60
ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.cluster.yml"
CONTENT: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = CONTENT["services"]

ZOOKEEPERS = [f"zookeeper-{number}" for number in (1, 2, 3)]
OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"

# The same cluster, at the addresses of the compose file. Other differences than addresses and folders: the JVMs are set
# up for long runs, not for a fast start; and ZooKeeper syncs before it acknowledges.
COMPOSED = ClusterLayout(
    zookeepers=[ListenAddress(name, name, 2181, (2888, 3888)) for name in ZOOKEEPERS],
    master=ListenAddress("hbase-master", "hbase-master", 16000),
    region_servers=[
        ListenAddress(name, name, 16020)
        for name in ("hbase-regionserver-1", "hbase-regionserver-2")
    ],
    gateways=[ListenAddress(name, name, 9090) for name in ("thrift-1", "thrift-2")],
    brokers=[
        ListenAddress(f"broker-{number}", f"broker-{number}", FIRST_PORT + number - 1)
        for number in (1, 2, 3)
    ],
    java="java",
    bind="0.0.0.0",
    zookeeper_folders={name: Folders("/etc/zookeeper", "/data") for name in ZOOKEEPERS},
    hbase_folder="/etc/hbase",
    hbase_root="file:///data/hbase",
    scratch="/tmp/hbase",
    broker_folder="/etc/broker",
    jars="/opt/hbase/lib/*",
    options={
        ProcessKind.ZOOKEEPER: ["-Xmx256m", OUT_OF_MEMORY],
        ProcessKind.MASTER: ["-Xmx512m", OUT_OF_MEMORY],
        ProcessKind.REGION_SERVER: ["-Xmx1g", OUT_OF_MEMORY],
        ProcessKind.GATEWAY: ["-Xmx256m", OUT_OF_MEMORY],
    },
    settings={"access.access_mode": "open"},
    zookeeper_settings={
        key: value for key, value in zookeeper.SETTINGS.items() if key != "forceSync"
    },
)
PROGRAMS = {program.name: program for program in programs(COMPOSED)}


def properties(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def settings_of(variables: Mapping[str, str]) -> dict[str, Any]:
    known = {key.variable: key for key in iter_keys()}
    return {known[name].dotted: parse(known[name], text) for name, text in variables.items()}


def as_configured(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        dotted: tuple(value) if isinstance(value, list) else value
        for dotted, value in given.items()
    }


def published(service: Mapping[str, Any]) -> list[str]:
    return [str(port) for port in service.get("ports", [])]


# --- The file itself -----------------------------------------------------------------------------


@pytest.mark.server("compose")
@pytest.mark.parametrize("profile", [[], ["--profile", "chaos"]], ids=["", "chaos"])
def test_compose_takes_the_file(profile: list[str]) -> None:
    command = [str(compose.binary()), "--file", str(FILE), *profile]
    subprocess.run([*command, "config", "--quiet"], check=True, timeout=60)
    listed = subprocess.run(
        [*command, "config", "--services"],
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    assert set(listed) == {
        name for name, service in SERVICES.items() if profile or "profiles" not in service
    }


@pytest.mark.server("compose")
def test_compose_refuses_a_wrong_file(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yml"
    wrong.write_text(FILE.read_text().replace("interval: 2s", "interval: soon"))
    command = [str(compose.binary()), "--file", str(wrong), "config", "--quiet"]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode != 0
    assert "interval" in done.stderr


def test_there_is_a_service_for_every_process_and_no_other() -> None:
    assert set(SERVICES) == {*PROGRAMS, "storage", "toxiproxy"}
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["toxiproxy"]


def test_data_lie_in_named_volumes() -> None:
    used = {volume for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == {f"{name}:/data" for name in CONTENT["volumes"]}
    for name in ("hbase-master", "hbase-regionserver-1", "hbase-regionserver-2"):
        assert SERVICES[name]["volumes"] == ["hbase:/data"]


def test_every_service_that_stays_has_a_health_check() -> None:
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == [
        "storage"
    ]


# --- One by one with the launcher ----------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_a_service_runs_what_the_launcher_runs(program: Program) -> None:
    service = SERVICES[program.name]
    if program.kind is ProcessKind.BROKER:
        # ``broker`` is ``python -m broker.cli``; its settings come from a file there, from variables here.
        assert program.argv[1:4] == ("-m", "broker.cli", "serve")
        assert service["command"] == ["broker", "serve"]
    else:
        assert service["command"] == list(program.argv)


@pytest.mark.parametrize("place", COMPOSED.brokers, ids=lambda place: place.name)
def test_a_broker_has_the_settings_that_the_launcher_gives(place: ListenAddress) -> None:
    given = as_configured(node_settings(COMPOSED, place))
    variables = SERVICES[place.name]["environment"]
    assert settings_of(variables) == given
    assert load(environment=variables).config.cluster.advertised_url == f"http://{place.address}"


@pytest.mark.parametrize("place", COMPOSED.brokers, ids=lambda place: place.name)
def test_a_broker_answers_to_the_name_of_its_service(place: ListenAddress) -> None:
    variables = SERVICES[place.name]["environment"]
    assert place.name in names_of(load(environment=variables).config, "container-id")


def test_the_tables_are_made_with_the_settings_of_the_brokers() -> None:
    assert SERVICES["storage"]["command"] == ["broker", "storage", "init"]
    given = as_configured(common_settings(COMPOSED))
    assert settings_of(SERVICES["storage"]["environment"]) == given


@pytest.mark.parametrize("place", COMPOSED.zookeepers, ids=lambda place: place.name)
def test_a_zookeeper_has_its_configuration_and_its_number(place: ListenAddress) -> None:
    assert properties((ROOT / "docker/zookeeper/zoo.cfg").read_text()) == zoo_cfg(COMPOSED, place)
    service = SERVICES[place.name]
    assert service["entrypoint"] == ["with-id"]
    assert service["environment"] == {"ZOOKEEPER_ID": PROGRAMS[place.name].files["/data/myid"]}
    assert "/data/myid" in (ROOT / "docker/zookeeper/with-id").read_text()


def test_hbase_has_the_configuration_that_the_launcher_gives() -> None:
    site = ET.parse(ROOT / "docker/hbase/hbase-site.xml")  # Ours.
    told = {key.findtext("name"): key.findtext("value") for key in site.getroot()}
    assert told == hbase_site(COMPOSED)


def test_java_has_the_options_that_the_launcher_gives() -> None:
    assert (ROOT / "docker/hbase/java.options").read_text() == java_options()
    assert (ROOT / "docker/hbase/log4j.properties").read_text() == hbase.LOG4J
    assert (ROOT / "docker/zookeeper/log4j.properties").read_text() == zookeeper.LOG4J


def test_the_files_that_commands_read_are_in_the_image() -> None:
    image = (ROOT / "docker/hbase/Dockerfile").read_text()
    copied = {
        target + Path(source).name
        for sources, target in re.findall(r"^COPY (?!--)(.+) (/\S+/)$", image, re.MULTILINE)
        for source in sources.split()
    }
    made = {"/etc/hbase/class-path", "/etc/zookeeper/class-path"}  # While the image is built.
    for program in PROGRAMS.values():
        if program.kind is not ProcessKind.BROKER:
            assert set(program.files) - made - {"/data/myid"} <= copied
    assert {"/usr/local/bin/healthy", "/usr/local/bin/with-id"} <= copied
    assert "tests/java/hbase/pom.xml" in image
    assert all(f"$jars:/etc/{of}" in image.replace("$of", of) for of in ("hbase", "zookeeper"))


def test_ports_are_published_on_loopback_and_are_those_of_the_launcher() -> None:
    ports = {name: published(service) for name, service in SERVICES.items() if published(service)}
    assert ports == {
        **{place.name: [f"127.0.0.1:{place.port}:{place.port}"] for place in COMPOSED.brokers},
        "toxiproxy": ["127.0.0.1:8474:8474"],
    }
    assert [place.port for place in COMPOSED.brokers] == [8081, 8082, 8083]


def test_toxiproxy_is_that_of_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toxiproxy, "binary", lambda: Path("toxiproxy"))
    server = ToxiproxyServer(folder=tmp_path)
    changed = {str(server.port): "8474", "127.0.0.1": "0.0.0.0"}
    assert SERVICES["toxiproxy"]["command"] == [changed.get(w, w) for w in server.command()]
    image = (ROOT / "docker/toxiproxy/Dockerfile").read_text()
    assert f"/cmd/server@v{toxiproxy.VERSION}" in image
    assert f".Version={toxiproxy.VERSION}" in image


# --- The health checks, against real servers -----------------------------------------------------


def healthy(name: str, port: int) -> int:
    """Run a service's health check here, against another port; return its exit code."""
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD"
    assert words[0] == "healthy"
    inside = PROGRAMS[name].place.port if name in PROGRAMS else 8474
    assert words[2:4] == ["127.0.0.1", str(inside)]
    command = [str(ROOT / "docker/healthy"), words[1], "127.0.0.1", str(port), *words[4:]]
    done = subprocess.run(command, check=False, timeout=DEADLINE_S, stderr=subprocess.DEVNULL)
    return done.returncode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    require("hbase")
    with LocalCluster(Sizes(nodes=1), folder=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_health_check_passes_on_a_server_that_serves(name: str, cluster: LocalCluster) -> None:
    of_that_kind = [member for member in cluster.members if member.kind is PROGRAMS[name].kind]
    assert healthy(name, of_that_kind[0].place.port) == 0, state_of(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zookeeper-1", "thrift-1", "broker-1"])
def test_a_health_check_fails_on_a_server_that_is_something_else(
    name: str, cluster: LocalCluster
) -> None:
    # A node answers an incomplete request after half a minute; a gateway closes the connection at once.
    kind = PROGRAMS["thrift-1" if name == "zookeeper-1" else "zookeeper-1"].kind
    other = next(member for member in cluster.members if member.kind is kind)
    assert healthy(name, other.place.port) != 0


@pytest.mark.parametrize("name", [*PROGRAMS, "toxiproxy"])
def test_a_health_check_fails_where_nothing_listens(name: str) -> None:
    assert healthy(name, *free_ports(1)) != 0


@pytest.mark.nightly
@pytest.mark.server("toxiproxy")
def test_the_health_check_of_toxiproxy_passes_on_it() -> None:
    with ToxiproxyServer() as server:
        assert healthy("toxiproxy", server.port) == 0
