"""``broker storage`` against a LevelDB store, and against a fake Thrift gateway."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from broker.cli.app import run
from broker.clock import SystemClock
from broker.config.sections import HBaseConfig
from broker.model import Snapshot
from broker.node import node
from broker.storage.hbase.store import init_hbase, open_hbase
from broker.storage.leveldb.files import DirectoryLock
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.wire.transaction import encode_snapshot, encode_transaction
from tests.kit.full_store import BOUNDS, FULL, PUBLISHED_LOG, Filler, StillClock
from tests.unit.storage.hbase.fake import Served, serving


@pytest.fixture
def gateway() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with every kind of data. No test changes it."""
    directory = tmp_path_factory.mktemp("stores") / "data"

    async def fill() -> None:
        table = await open_table(directory)
        await Filler(Logs(table, StillClock(), bounds=BOUNDS)).fill()
        await table.close()

    asyncio.run(fill())
    return directory


@pytest.fixture
def full_tables(gateway: Served) -> list[str]:
    """The options for a cluster's store with every kind of data."""
    where = where_of(gateway)
    config = HBaseConfig(hbase_gateways=(where,), hbase_regions=1)

    async def fill() -> None:
        await init_hbase(config)
        table = await open_hbase(config, SystemClock())
        await Filler(Logs(table, StillClock(), bounds=BOUNDS)).fill()
        await table.close()

    asyncio.run(fill())
    return ["--hbase-gateways", where]


def where_of(gateway: Served) -> str:
    return f"127.0.0.1:{gateway.address.port}"


def storage(*words: str) -> int:
    with pytest.raises(SystemExit) as exited:
        run(["storage", *words])
    return int(exited.value.code or 0)


def damaged(full: Path, copy: Path) -> Path:
    """Return a copy of a store without one of its pages."""
    asyncio.run(_copied(full, copy))
    database = plyvel.DB(str(copy / "db"))
    pages = [key for key, _ in database.iterator(prefix=b"mcheck:full:\0\0\0\1")]
    database.delete(pages[-2])
    database.close()
    (copy / "CLEAN").unlink(missing_ok=True)
    return copy


async def _copied(full: Path, copy: Path) -> None:
    from broker.storage.leveldb.directory_repair import repair  # noqa: PLC0415

    await repair(full, copy)


# Verifying.


def test_a_sound_store_has_no_problems(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert storage("verify", str(full)) == 0
    said = capsys.readouterr().out
    assert "topics        8\n" in said
    assert said.endswith("no problems\n")


def test_the_configuration_names_the_store(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'[storage]\ndata_dir = "{full}"\n')
    assert storage("verify", "--config", str(config), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["topics"], report["wrong"], report["problems"]) == (8, 0, [])


def test_problems_are_reported_and_set_the_exit_code(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = damaged(full, tmp_path / "copy")
    assert storage("verify", str(store)) == 1
    said = capsys.readouterr().out
    assert "problem: check:full, generation 1, page" in said
    assert "it is missing" in said
    assert "problems: " in said


def test_a_cluster_is_verified_while_it_may_be_served(
    full_tables: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage("verify", *full_tables, "--json") == 0
    assert json.loads(capsys.readouterr().out)["topics"] == 8


def test_a_store_in_use_is_verified_but_not_repaired(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = DirectoryLock(full)
    assert storage("verify", str(full)) == 0
    assert storage("repair", str(full), str(tmp_path / "mended")) == 4
    lock.close()
    said = capsys.readouterr().err
    assert "is in use by another process" in said
    assert "broker serve" not in said


def test_a_folder_without_a_store_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage("verify", str(tmp_path)) == 1
    assert f"there is no store in {tmp_path}" in capsys.readouterr().err


# Repairing.


def test_a_repaired_copy_verifies(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage("repair", str(full), str(tmp_path / "copy")) == 0
    assert "no problems" in capsys.readouterr().out
    assert storage("repair", str(full), str(tmp_path / "copy")) == 1
    assert "name a new directory" in capsys.readouterr().err
    store = damaged(full, tmp_path / "damaged")
    assert storage("verify", str(store)) == 1
    assert "missing" in capsys.readouterr().out
    assert storage("repair", str(store), str(tmp_path / "mended"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["wrong"] == 0


def test_what_can_not_be_repaired_leaves_no_copy_and_no_advice_that_leads_in_a_circle(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    shutil.copytree(full, store)
    identity = json.loads((store / "IDENTITY").read_text())
    (store / "IDENTITY").write_text(json.dumps({**identity, "format": 1}))
    assert storage("repair", str(store), str(copy)) != 0
    other_format = capsys.readouterr().err
    assert "Start the release that wrote it" in other_format
    shutil.copy(full / "IDENTITY", store)
    shutil.rmtree(store / "db")
    assert storage("repair", str(store), str(copy)) != 0
    missing = capsys.readouterr().err
    assert "db/ has no file with data to repair" in missing
    (store / "db").mkdir()
    (store / "db" / "CURRENT").mkdir()
    assert storage("repair", str(store), str(copy)) != 0
    assert "broker storage" not in other_format + missing + capsys.readouterr().err
    assert not copy.exists()


# Showing.


def test_a_topic_is_shown_decoded(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert storage("show", "check/full", "--dir", str(full), "--entries", "100") == 0
    said = capsys.readouterr().out
    assert "state       live\ngeneration  1\nepoch       2\n" in said
    for word in ("sealed", "open", "gone", "filler", "marks 1", "ended", "lifetime ms 3600000"):
        assert word in said
    assert "pointer 77, rolled back in 1" in said
    assert f"pointer {PUBLISHED_LOG}, payload log {PUBLISHED_LOG}" in said


def test_a_topic_is_shown_as_json(
    full: Path, full_tables: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for words in (["--dir", str(full)], full_tables):
        assert (
            storage("show", "check/full", *words, "--json", "--entries", "3", "--pages", "2") == 0
        )
        shown.append(json.loads(capsys.readouterr().out))
    for each in shown:
        assert (len(each["pages"]), len(each["entries"])) == (2, 3)
        assert each["pages"][-1]["page"] == each["root"]["page"]
        assert each["entries"][-1]["last"] == each["pages"][-1]["pointer"]
        assert each["entries"][-1]["marks"][0]["last"] == each["pages"][-1]["pointer"]
    assert shown[0]["entries"] == shown[1]["entries"]


def test_entries_are_shown_in_order_across_pages(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage("show", "check/full", "--dir", str(full), "--json", "--entries", "999") == 0
    shown = json.loads(capsys.readouterr().out)
    lasts = [entry["last"] for entry in shown["entries"]]
    assert lasts == sorted(set(lasts))
    assert len(lasts) == sum(page["cells"] for page in shown["pages"] if page["state"] != "gone")


def test_a_payload_log_and_an_older_generation_are_shown(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ["--payload-log", str(PUBLISHED_LOG)]
    assert storage("show", "check/full", "--dir", str(full), *number) == 0
    said = capsys.readouterr().out
    assert "published" in said
    assert "closed" in said
    assert storage("show", "check/again", "--dir", str(full), "--generation", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["pages"][-1]["state"] == "closed"


def test_a_topic_without_data_is_an_error(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert storage("show", "check/none", "--dir", str(full)) == 1
    assert "the store has no data of topic check:none" in capsys.readouterr().err


# Making tables.


def test_the_tables_are_created_and_reported(
    gateway: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    where = where_of(gateway)
    words = ["--hbase-gateways", where, "--hbase-namespace", "prod", "--hbase-regions", "4"]
    assert storage("init", *words) == 0
    assert "table      prod:broker_messages  made  4" in capsys.readouterr().out
    assert storage("init", *words, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [each["made"] for each in made] == [False] * 4
    assert [each["regions"] for each in made] == [None, 4, 4, 1]


def test_tables_with_wrong_settings_are_reported(
    gateway: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    where = where_of(gateway)
    assert storage("init", "--hbase-gateways", where) == 0
    assert storage("init", "--hbase-gateways", where, "--durability", "flushed") == 1
    assert "problem: broker_messages: its durability" in capsys.readouterr().err


def test_without_a_folder_or_a_gateway_the_missing_option_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert storage("init") == 2
    assert "--hbase-gateways" in capsys.readouterr().err


def test_without_hbase_init_is_retriable(capsys: pytest.CaptureFixture[str]) -> None:
    assert storage("init", "--hbase-gateways", "127.0.0.1:1", "--hbase-connect", "0.1") == 4
    said = capsys.readouterr().err
    assert "HBase did not create the tables" in said
    assert "broker serve" not in said


# Sweeping.


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (node.SweepReport(topics=2, rows=7), 0),
        (node.SweepReport(topics=2, skipped=1, problem="a:b: it is damaged"), 1),
        (node.SweepReport(topics=2, ended_early=True), 1),
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
    assert storage("sweep", str(tmp_path)) == code
    assert ("it is damaged" in capsys.readouterr().out) is (report.problem is not None)


@pytest.mark.parametrize("form", ["json", "wrapped", "list", "thrift"])
def test_a_snapshot_marks_invalid_transactions(
    form: str, full: Path, tmp_path: Path, capfd
) -> None:
    def entries(*more: str) -> list[dict[str, object]]:
        topic = f"{FULL.namespace}/{FULL.topic}"
        with pytest.raises(SystemExit) as left:
            run(["storage", "show", topic, "--dir", str(full), "--entries", "999", "--json", *more])
        assert left.value.code == 0
        return json.loads(capfd.readouterr().out)["entries"]

    before = {each["pointer"]: each["tx_state"] for each in entries()}
    assert before[None] == "none"
    pointer = int(next(number for number, state in before.items() if state == "published"))
    snapshot = Snapshot(transaction_id=1, read_pointer=1, invalids=[pointer])
    told = {
        "json": json.dumps(encode_snapshot(snapshot)).encode(),
        "wrapped": json.dumps({"snapshot": encode_transaction(snapshot).hex()}).encode(),
        "list": json.dumps([str(pointer)]).encode(),
        "thrift": encode_transaction(snapshot),
    }
    file = tmp_path / "snapshot"
    file.write_bytes(told[form])
    after = {each["pointer"]: each["tx_state"] for each in entries("--snapshot", str(file))}
    assert after == {**before, str(pointer): "invalid"}


def test_a_file_that_is_no_snapshot_is_refused(full: Path, tmp_path: Path, capfd) -> None:
    file = tmp_path / "snapshot"
    for text in (b"", b"{}", b"[x]", b"nothing"):
        file.write_bytes(text)
        with pytest.raises(SystemExit) as left:
            run(["storage", "show", "a/b", "--dir", str(full), "--snapshot", str(file)])
        assert (left.value.code, "--snapshot" in capfd.readouterr().err) == (2, True)
