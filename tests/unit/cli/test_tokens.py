"""The token of a command comes from a file or from the environment, and no output shows it."""

import json
from pathlib import Path

import pytest

from broker.cli.command.command_token import token_of
from broker.cli.command.contexts import BrokerTarget, GivenOptions
from broker.config.sections import ConfigError
from tests.unit.cli.running import run

CANARY = "canary-4f9c"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{CANARY}\n")
    path.chmod(0o600)
    return str(path)


def given(**options):
    return GivenOptions(**options)


def test_a_typed_file_wins_over_the_context_and_the_context_over_the_environment(file):
    context = BrokerTarget("http://a:1", "context 'a'", token_file=file)
    assert (
        token_of(given(typed_token_file=file, target=context), {"BROKER_TOKEN": "x"}).token_file
        == file
    )
    found = token_of(given(target=context), {"BROKER_TOKEN": "x"})
    assert (found.token.reveal(), found.token_file) == ("", file)
    plain = given(target=BrokerTarget("http://a:1", "--url"))
    assert token_of(plain, {"BROKER_TOKEN": "x"}).token.reveal() == "x"
    assert token_of(plain, {"BROKER_TOKEN_FILE": file}).token_file == file
    assert token_of(plain, {}) == token_of(given(), {})
    with pytest.raises(ConfigError, match="not both"):
        token_of(plain, {"BROKER_TOKEN_FILE": file, "BROKER_TOKEN": CANARY})
    with pytest.raises(ConfigError, match="visible ASCII") as refused:
        token_of(plain, {"BROKER_TOKEN": f"Bearer {CANARY}"})
    assert CANARY not in str(refused.value)


def test_a_command_refuses_a_file_that_others_can_read(capsys, file, monkeypatch):
    Path(file).chmod(0o640)
    for words, source in (
        (("topics", "list", "ns", "--token-file", file), "--token-file"),
        (("topics", "list", "ns"), "BROKER_TOKEN_FILE"),
    ):
        monkeypatch.setenv("BROKER_TOKEN_FILE", file)
        code, _, err = run(capsys, *words)
        assert code == 2
        assert f"{source}: {file} has the mode 0640" in err
        assert CANARY not in err
    code, _, err = run(capsys, "context", "add", "a", "--url", "http://a:1", "--token-file", file)
    assert code == 2
    assert "chmod 600" in err


def test_a_context_keeps_the_path_of_the_file_and_never_the_token(capsys, file, tmp_path):
    assert run(capsys, "context", "add", "a", "--url", "http://a:1", "--token-file", file)[0] == 0
    shown = json.loads(run(capsys, "context", "show", "a", "--json")[1])
    assert shown["token_file"] == file
    listed = run(capsys, "context", "list")[1]
    kept = (tmp_path / "config" / "broker" / "contexts.json").read_text()
    assert file in kept
    assert CANARY not in listed + kept


def test_a_token_in_a_url_is_refused_and_not_shown(capsys):
    for url in (f"http://me:{CANARY}@a:1", f"http://a:1?token={CANARY}"):
        for words in (
            ("topics", "list", "ns", "--url", url),
            ("context", "add", "a", "--url", url),
        ):
            code, out, err = run(capsys, *words)
            assert code == 2
            assert CANARY not in out + err


def test_no_option_takes_a_token(capsys):
    assert run(capsys, "topics", "list", "ns", "--token", CANARY)[0] == 2
