"""The commands of access, against the real handlers and a real store."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.access.access_records import AccessRecords
from broker.clock import SystemClock
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.records import Records
from tests.unit.cli.running import run as running
from tests.unit.cli.test_cluster import Short


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Short]:
    client = Short()
    monkeypatch.setattr("broker.cli.command.broker_calls.BrokerCall.client", lambda *_: client)
    yield client
    client.close()


def test_tokens_are_shown_once_and_revoked(
    short: Short, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = running(capsys, "access", "token", "create", "billing", "--expires", "90d")
    text = out.strip()
    assert (code, text[:4]) == (0, "tms_")
    code, out, _ = running(capsys, "access", "token", "list", "--json")
    (listed,) = json.loads(out)["tokens"]
    assert listed["principal"] == "billing"
    assert listed["expires_ms"] - listed["created_ms"] == 90 * 86_400_000
    assert text.rpartition("_")[2] not in out
    code, _, err = running(capsys, "access", "token", "revoke", listed["id"])
    assert (code, err) == (0, f"{listed['id']} of billing is revoked\n")
    code, _, err = running(capsys, "access", "token", "revoke", listed["id"])
    assert code == 1
    assert "There is no token" in err


def test_a_check_names_the_grant_that_decides(
    short: Short, capsys: pytest.CaptureFixture[str]
) -> None:
    grant = ("billing", "writer", "audit/*")
    check = ("access", "check", "billing", "publish", "audit/logins")
    assert "denied" in "".join(running(capsys, *check)[1:])
    assert "billing writer audit/*: granted" in running(capsys, "access", "grant", *grant)[2]
    assert "granted before" in running(capsys, "access", "grant", *grant)[2]
    assert "allowed by: billing writer audit/*" in "".join(running(capsys, *check)[1:])
    assert "audit/*" in running(capsys, "access", "list")[1]
    assert "revoked" in running(capsys, "access", "revoke", *grant)[2]
    assert "denied" in "".join(running(capsys, *check)[1:])
    code, _, err = running(capsys, "access", "grant", "billing", "king")
    assert code == 1
    assert "what: must be a role or an action" in err


def test_the_last_administrator_is_not_revoked_by_accident(
    short: Short, capsys: pytest.CaptureFixture[str]
) -> None:
    running(capsys, "access", "grant", "dave", "admin")
    code, _, err = running(capsys, "access", "revoke", "dave", "admin")
    assert code == 1
    assert "last grant that allows access" in err
    assert running(capsys, "access", "revoke", "dave", "admin", "--force")[0] == 0


async def has(directory: Path, text: str) -> bool:
    table = await open_table(directory)
    access = AccessRecords(Records(Logs(table, SystemClock()).resolver), SystemClock())
    token = (await access.stored()).token(text, SystemClock().now_ms())
    await table.close()
    return token is not None and token.principal == "admin"


def test_init_makes_the_first_administrator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, out = tmp_path / "data", tmp_path / "admin.token"
    init = ("access", "init", "--data-dir", str(directory), "--out")
    code, _, err = running(capsys, *init, str(out))
    assert (code, err.splitlines()[-1]) == (0, f"the token of admin is in {out}")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert asyncio.run(has(directory, out.read_text().strip()))
    code, _, err = running(capsys, *init, str(out))
    assert code == 1
    assert "Name a new file" in err
    second = tmp_path / "second.token"
    code, _, err = running(capsys, *init, str(second))
    assert code == 1
    assert "there is an administrator already: admin" in err
    assert not second.exists()
    assert running(capsys, *init, str(second), "--again")[0] == 0
