import json
import subprocess
import sys

import click
import pytest

from broker import __version__, errors
from broker.cli import app
from broker.config import iter_keys
from broker.settings import as_text


def run(capsys, *words):
    with pytest.raises(SystemExit) as left:
        app.run(list(words))
    told = capsys.readouterr()
    return left.value.code, told.out, told.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TopicNotFound("no"), 1),
        (errors.OutcomeUnknown("lost"), 3),
        (errors.StorageFull("full", outcome="unknown"), 3),
        (errors.Overloaded("busy"), 4),
        (errors.Unavailable("down"), 4),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_says_what_to_do(error, code):
    assert app.exit_code(error) == code
    assert app.explain(error, as_json=False).startswith(f"broker: {error.message}\n")
    told = json.loads(app.explain(error, as_json=True))
    assert told == {
        "code": error.code,
        "message": error.message,
        "retriable": error.retriable,
        "outcome": error.outcome,
    }


def commands(group, *path):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        yield (*path, name)


ALL = sorted(commands(app.cli))


def test_the_commands_are_there():
    names = {path[0] for path in ALL}
    assert names == {
        "browse",
        "chaos",
        "cluster",
        "config",
        "poll",
        "publish",
        "serve",
        "stats",
        "storage",
        "tail",
        "topics",
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_shows_examples(path, capsys):
    code, out, _ = run(capsys, *path, "--help")
    assert code == 0
    assert f"broker {' '.join(path)}" in out.partition("\n")[2]
    assert "``" not in out


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in ALL
        if path not in {("serve",), ("topics",), ("storage",), ("cluster",), ("chaos",)}
    ],
)
def test_every_command_can_write_json(path, capsys):
    assert "--json" in run(capsys, *path, "--help")[1]


def test_the_version_is_told(capsys):
    assert __version__ in run(capsys, "--version")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "audit", "x"), "NAMESPACE/TOPIC"),
        (("publish", "a/b"), "--lines"),
        (("publish", "a/b", "x", "--lines", "-"), "--lines"),
        (("publish", "a/b!", "x"), "b!"),
        (("tail", "a/b", "--since", "yesterday"), "neither a duration"),
        (("tail", "a/b", "--after", "12"), "40 hex digits"),
        (("tail", "a/b", "--after", "00" * 20, "--since", "1h"), "not both"),
        (("tail", "a/b", "--exec", "it's"), "No closing quotation"),
        (("topics", "create", "a/b", "ttl"), "NAME=VALUE"),
        (("topics", "set", "a/b"), "Name what to change"),
        (("poll", "a/b", "--url", "localhost:1"), "http://HOST:PORT"),
        (("poll", "a/b", "--url", "http://a:1,http://b:99999"), "'http://b:99999' is not"),
        (("poll", "a/b", "--url", "http://:80"), "http://HOST:PORT"),
        (("serve", "--port", "http"), "--port: server.port = 'http': 'http' is no whole number"),
        (("serve", "--drain", "soon"), "'soon' is no number"),
        (("serve", "--log-level", "loud"), "'loud' is none of debug, info, warning, error"),
        (("serve", "--no-such-key", "1"), "No such option"),
    ],
)
def test_a_wrong_command_line_is_2_and_says_what_is_wrong(words, said, capsys):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    "command",
    [("poll",), ("tail",), ("tail", "--no-follow"), ("browse",), ("stats",)],
    ids=" ".join,
)
def test_a_broker_that_is_not_there_is_4(capsys, command):
    words = (*command, "a/b", "--url", "http://127.0.0.1:1", "--deadline", "0.1")
    code, _, err = run(capsys, *words)
    assert code == 4
    assert "broker serve" in err
    code, _, err = run(capsys, *words, "--json")
    assert code == 4
    assert json.loads(err)["retriable"] is True


def test_the_configuration_is_told_with_its_sources(capsys, tmp_path, monkeypatch):
    file = tmp_path / "broker.toml"
    file.write_text("[server]\nhost = '127.0.0.2'\n")
    monkeypatch.setenv("BROKER_LIMITS__BODY_BYTES_MAX", "1000")
    words = ("config", "--config", str(file), "--port", "9000")
    code, out, _ = run(capsys, *words, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["server.port"] == {"value": "9000", "source": "flag --port"}
    assert told["server.host"] == {"value": "127.0.0.2", "source": f"file {file}"}
    assert told["limits.body_bytes_max"]["source"] == "environment BROKER_LIMITS__BODY_BYTES_MAX"
    assert told["server.keep_alive_s"]["source"] == "default"
    assert "server.port" in run(capsys, *words)[1]


def test_every_key_is_a_flag_of_whoever_reads_the_configuration(capsys):
    for name in ("serve", "config"):
        flags = {flag for option in app.cli.commands[name].params for flag in option.opts}
        assert {known.flag for known in iter_keys()} <= flags
    words = [word for known in iter_keys() for word in (known.flag, as_text(known.default))]
    _, out, _ = run(capsys, "config", *words, "--json")
    told = json.loads(out)
    assert {known.dotted: f"flag {known.flag}" for known in iter_keys()} == {
        key: value["source"] for key, value in told.items()
    }


def test_a_folder_that_can_not_be_had_is_named(capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()
    code, _, err = run(capsys, "serve", "--port", "0", "--data-dir", str(file))
    assert code == 1
    assert f"can't serve on {file}: File exists" in err


def test_an_unknown_key_in_a_file_is_2(capsys, tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text("[server]\nprot = 1\n")
    code, _, err = run(capsys, "config", "--config", str(file))
    assert code == 2
    assert "server.port" in err


def test_a_missing_extra_is_named():
    program = "import sys\nsys.modules['click'] = None\nfrom broker.cli import main\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "tms-broker[server]" in done.stderr
    assert "Traceback" not in done.stderr
