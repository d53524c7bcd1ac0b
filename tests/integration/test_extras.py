"""Each extra has all requirements of its part: the part runs in an environment without other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.installations import ROOT, installation, run


def without_what_is_missing(python: Path, *packages: str) -> None:
    """Check that the installation lacks these packages; otherwise the test would show nothing."""
    for package in packages:
        assert run(python, "-c", f"import {package}").returncode != 0, package


IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return installation(tmp_path / "installed", request.param)


@pytest.mark.parametrize("made", [()], indirect=True, ids=["base"])
def test_the_client_runs_with_no_extra(made: Path) -> None:
    without_what_is_missing(made, "aiohttp", "click", "plyvel", "sqlalchemy", "structlog")
    done = run(made, "-c", IMPORT_ALL, "broker.client", "broker.wire")
    assert done.returncode == 0, done.stderr
    told = run(made, "-m", "broker.cli", "serve")
    assert told.returncode == 1
    assert "pip install 'tms-broker[server]'" in told.stderr
    for extra in ("sql", "rowlog", "streams", "spark"):
        told = run(made, "-c", f"import broker.{extra}")
        assert f"pip install 'tms-broker[{extra}]'" in told.stderr.splitlines()[-1]


@pytest.mark.parametrize("made", [("server",)], indirect=True, ids=["server"])
def test_the_main_job_runs_with_the_extra_server(made: Path, tmp_path: Path) -> None:
    without_what_is_missing(made, "kazoo", "pytest", "matplotlib")
    lines = tmp_path / "input.log"
    lines.write_bytes(b"a line\n" * 1_000)
    done = run(made, str(ROOT / "scripts" / "demo.py"), INPUT=str(lines), STAY="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every byte is the same" in done.stdout


@pytest.mark.parametrize("made", [("server",)], indirect=True, ids=["server"])
@pytest.mark.parametrize("command", [["cluster", "up"], ["chaos", "cases"]], ids="-".join)
def test_the_error_names_the_extra_of_a_missing_package(made: Path, command: list[str]) -> None:
    told = run(made, "-m", "broker.cli", *command)
    assert told.returncode != 0
    assert f"tms-broker[{command[0]}]" in told.stderr
    assert "Traceback" not in told.stderr
    assert "zookeeper" not in told.stderr, "it says so before it starts a server"


@pytest.mark.parametrize(
    ("made", "has_it"),
    [(("arrow",), True), (("server",), False)],
    indirect=["made"],
    ids=["arrow", "server"],
)
def test_bulk_reads_take_the_extra_arrow(made: Path, *, has_it: bool) -> None:
    told = run(made, "-c", "from broker.api.messages.arrow import ArrowMaker; ArrowMaker()")
    assert (told.returncode == 0) is has_it, told.stderr
    assert ("tms-broker[arrow]" in told.stderr) is not has_it


@pytest.mark.parametrize(
    ("made", "has_it"),
    [(("export",), True), (("server",), False)],
    indirect=["made"],
    ids=["export", "server"],
)
def test_files_take_the_extra_export(made: Path, *, has_it: bool) -> None:
    program = "from broker.transfer.formats import FORMATS\nFORMATS['{}'].check()"
    for name in ("avro", "parquet"):
        told = run(made, "-c", program.format(name))
        assert (told.returncode == 0) is has_it, told.stderr
        assert ("tms-broker[export]" in told.stderr) is not has_it


@pytest.mark.parametrize("made", [("tephra",)], indirect=True, ids=["tephra"])
def test_tephra_s_clients_take_the_extra_tephra(made: Path) -> None:
    without_what_is_missing(made, "kazoo", "pytest")
    program = "from broker.transactions.tephra_frames import Idl; print(len(Idl().methods))"
    done = run(made, "-c", f"import broker.transactions.tephra_server\n{program}")
    assert (done.returncode, done.stdout) == (0, "21\n"), done.stderr


@pytest.mark.parametrize("made", [("server",)], indirect=True, ids=["server"])
def test_without_it_the_port_names_it(made: Path, tmp_path: Path) -> None:
    flags = ["--port", "0", "--thrift-port", "0", "--data-dir", str(tmp_path / "data")]
    told = run(made, "-m", "broker.cli", "serve", *flags)
    assert told.returncode != 0
    assert "tms-broker[tephra]" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("made", [("cluster",)], indirect=True, ids=["cluster"])
def test_a_node_of_a_cluster_has_all_with_the_extra_cluster(made: Path) -> None:
    without_what_is_missing(made, "thriftpy2", "pytest", "libfaketime", "matplotlib")
    parts = ["coordination", "local", "routing", "storage", "api", "topics", "cli"]
    done = run(made, "-c", IMPORT_ALL, *(f"broker.{part}" for part in parts))
    assert done.returncode == 0, done.stderr
    done = run(made, "-c", "import broker.node.ground, broker.local.__main__")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("made", [("spark",)], indirect=True, ids=["spark"])
def test_spark_finds_the_format_with_the_extra_spark(made: Path) -> None:
    without_what_is_missing(made, "aiohttp", "click", "plyvel", "pandas", "pytest")
    done = run(
        made,
        "-c",
        f"{IMPORT_ALL}\nimport pyspark_tms; print(pyspark_tms.DefaultSource.name())",
        "broker.spark",
    )
    assert (done.returncode, done.stdout) == (0, "tms\n"), done.stderr


@pytest.mark.parametrize("made", [("sql",)], indirect=True, ids=["sql"])
def test_sql_databases_take_the_extra_sql(made: Path) -> None:
    without_what_is_missing(made, "aiohttp", "click", "aiosqlite", "pytest")
    done = run(made, "-c", IMPORT_ALL, "broker.sql")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("made", [("chaos",)], indirect=True, ids=["chaos"])
def test_the_verifier_has_all_with_the_extra_chaos(made: Path) -> None:
    without_what_is_missing(made, "pytest", "hypothesis", "aiokafka")
    done = run(made, "-c", IMPORT_ALL, "chaos", "broker.testing.simulation", "chaos.workloads")
    assert done.returncode == 0, done.stderr
    done = run(made, "-m", "chaos", "case", "hole")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("made", [("rowlog",)], indirect=True, ids=["rowlog"])
def test_a_rowlog_has_all_with_the_extra_rowlog(made: Path) -> None:
    program = "import broker.rowlog.directory, broker.rowlog.remote, broker.coordination.zookeeper"
    done = run(made, "-c", program)
    assert done.returncode == 0, done.stderr
