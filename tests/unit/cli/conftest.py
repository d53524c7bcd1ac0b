import pytest


@pytest.fixture(autouse=True)
def settings_of_its_own(tmp_path, monkeypatch):
    """Let no test see the contexts and the addresses of whoever runs it."""
    for name in ("BROKER_URL", "BROKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
