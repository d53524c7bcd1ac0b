"""``broker storage init`` for HBase, against a gateway of Thrift's own bytes; what sweeps tell."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import node
from broker.cli.app import run
from tests.unit.storage.served_gateway import Served, serving


@pytest.fixture
def gateway() -> Iterator[Served]:
    with serving() as served:
        yield served


def init(*words: str) -> int:
    with pytest.raises(SystemExit) as exited:
        run(["storage", "init", *words])
    return int(exited.value.code or 0)


def test_the_tables_are_made_and_what_was_done_is_told(
    gateway: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"127.0.0.1:{gateway.address.port}"
    words = ["--hbase-gateways", where, "--hbase-namespace", "prod", "--hbase-regions", "4"]
    assert init(*words) == 0
    assert "table      prod:broker_messages  made  4" in capsys.readouterr().out
    assert init(*words, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [each["made"] for each in made] == [False] * 4
    assert [each["regions"] for each in made] == [None, 4, 4, 1]


def test_tables_that_are_not_as_they_must_be_are_told(
    gateway: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"127.0.0.1:{gateway.address.port}"
    assert init("--hbase-gateways", where) == 0
    assert init("--hbase-gateways", where, "--durability", "flushed") == 1
    assert "wrong: broker_messages: its durability" in capsys.readouterr().err


def test_without_a_folder_or_a_gateway_it_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert init() == 2
    assert "--hbase-gateways" in capsys.readouterr().err


def test_without_hbase_it_can_be_tried_again_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--hbase-gateways", "127.0.0.1:1", "--hbase-connect", "0.1") == 4
    said = capsys.readouterr().err
    assert "HBase did not make the tables" in said
    assert "broker serve" not in said


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (node.SweepReport(topics=2, rows=7), 0),
        (node.SweepReport(topics=2, skipped=1, problem="a:b: it is damaged"), 1),
        (node.SweepReport(topics=2, rested=True), 1),
    ],
)
def test_a_sweep_that_is_not_whole_exits_with_1(
    report: node.SweepReport,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def sweep_store(_: object) -> node.SweepReport:
        return report

    monkeypatch.setattr(node, "sweep_store", sweep_store)
    with pytest.raises(SystemExit) as exited:
        run(["storage", "sweep", str(tmp_path)])
    assert exited.value.code == code
    assert ("it is damaged" in capsys.readouterr().out) is (report.problem is not None)
