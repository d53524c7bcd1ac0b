import pytest

from broker.cli import app
from broker.cli.command import completion
from broker.cli.command.contexts import BrokerTarget, GivenOptions
from tests.unit.cli.running import run


def completed(capsys, monkeypatch, *words):
    """Return the words that bash offers."""
    monkeypatch.setenv("COMP_WORDS", " ".join(("broker", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert completion.complete(app.cli, "bash_complete") == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.split()]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_each_shell_asks_this_program(capsys, shell):
    code, out, err = run(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert completion.VARIABLE in out


def test_another_shell_is_2(capsys):
    assert run(capsys, "completion", "tcsh")[0] == 2


def test_commands_options_and_contexts_are_completed(capsys, monkeypatch):
    assert completed(capsys, monkeypatch, "topics", "cr") == ["create"]
    assert "--since" in completed(capsys, monkeypatch, "tail", "a/b", "--si")
    run(capsys, "context", "add", "prod", "--url", "http://127.0.0.1:1")
    assert completed(capsys, monkeypatch, "context", "use", "p") == ["prod"]
    assert completed(capsys, monkeypatch, "tail", "--context", "p") == ["prod"]


@pytest.mark.slow
def test_a_broker_that_is_not_there_completes_nothing_and_says_nothing(capsys, monkeypatch):
    words = ("tail", "--url", "http://127.0.0.1:1", "audit/")
    assert completed(capsys, monkeypatch, *words) == []
    assert completion.topics(GivenOptions(), "audit/") == []
    assert completion.topics(GivenOptions(target=BrokerTarget("no address", "")), "audit/") == []
