"""Command lines of ``broker rowlog process`` that are refused before it connects."""

from pathlib import Path

import pytest

from tests.unit.cli.running import run

MODULES = {
    "misspelt": "def on_message(:",
    "ending": "raise RuntimeError('no configuration')",
    "fine": "async def on_message(message): ...\nasync def two(message, more): ...\nname = 1",
}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["indexer=:on_message"], "write SUBSCRIPTION=MODULE:FUNCTION"),
        (["indexer=misspelt:on_message"], "SyntaxError"),
        (["indexer=ending:on_message"], "RuntimeError: no configuration"),
        (["indexer=fine:another"], "AttributeError"),
        (["indexer=missing:on_message"], "ModuleNotFoundError"),
        (["indexer=fine:two"], "A listener is called with 1 argument by position"),
        (["indexer=fine:name"], "A listener is a function, not int"),
        (["indexer=fine:on_message", "--serve", "here"], "--serve: 'here' is not host:port"),
        (["indexer=fine:on_message", "--listen-only"], "--listen-only needs --serve"),
        (["indexer=fine:on_message", "--url", "http://me:1"], "--url needs --serve"),
    ],
)
def test_a_listener_that_can_not_be_imported_is_a_usage_error(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # The command changes the path, too; this restores it.
    # Nothing listens there: a command that is not refused fails with another code.
    unreachable = ["--hbase", "127.0.0.1:1"]
    code, _, told = run(capsys, "rowlog", "process", "mq", *unreachable, "--listener", *words)
    assert (code, says in told) == (2, True), told
