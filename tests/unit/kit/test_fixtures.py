from pathlib import Path

import pytest

from tests.kit.fixtures import require


@pytest.fixture(autouse=True)
def no_server_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_SERVERS_DIR", str(tmp_path))


def test_a_missing_server_skips_locally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="toxiproxy is not fetched"):
        require("toxiproxy")


def test_a_missing_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="toxiproxy is not fetched"):
        require("toxiproxy")
