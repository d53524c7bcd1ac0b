import pytest


@pytest.fixture(autouse=True)
def settings_of_its_own(tmp_path, monkeypatch):
    """Hide the contexts and addresses of the user that runs the tests."""
    for name in ("BROKER_URL", "BROKER_CONTEXT", "BROKER_TOKEN", "BROKER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
