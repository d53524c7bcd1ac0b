import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from broker import __version__, errors
from broker.cli import app
from broker.cli.command import problems
from broker.cli.command.contexts import BrokerTarget, GivenOptions
from broker.cli.command.problems import ADVICE, problem_of
from broker.config.sections import (
    AccessConfig,
    AccessMode,
    Config,
    ServerConfig,
    StorageConfig,
    TransactionsConfig,
    iter_keys,
)
from broker.config.sources import as_text
from broker.errors import CannotListen
from broker.model import TopicId
from broker.node.start_problems import cannot_serve
from broker.storage.leveldb.table import open_table
from tests.unit.cli.running import run


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
def test_each_kind_of_error_has_its_exit_code_and_advice(error, code):
    given = GivenOptions(target=BrokerTarget("http://127.0.0.1:8080", "the default"))
    problem = problem_of(error, given)
    assert problem.exit_code == code
    assert problem.text().startswith(f"broker: {error.message}\n")
    assert json.loads(problem.json()) == {
        "code": error.code,
        "message": error.message,
        "retriable": error.retriable,
        "outcome": error.outcome,
    }


def test_a_servers_error_can_not_forge_a_line(capsys):
    forged = errors.BadRequest("no\x1b[2J\nbroker: all is well\u202e")
    forged.add_note("2 of 3 are published")

    def fail():
        raise forged

    assert problems.ending(fail, GivenOptions()) == 1
    told = capsys.readouterr().err
    assert told == "broker: no\\x1b[2J\\nbroker: all is well\\u202e\n2 of 3 are published\n"
    assert problems.ending(fail, GivenOptions(as_json=True)) == 1
    assert (
        json.loads(capsys.readouterr().err)["message"] == f"{forged.message}\n2 of 3 are published"
    )


def commands(group, *path):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        yield (*path, name)


ALL = sorted(commands(app.cli))


def test_the_list_of_commands():
    names = {path[0] for path in ALL}
    assert names == {
        "access",
        "bench",
        "browse",
        "chaos",
        "cluster",
        "completion",
        "cursors",
        "dead-letters",
        "config",
        "context",
        "namespaces",
        "poll",
        "publish",
        "purge",
        "export",
        "import",
        "rowlog",
        "serve",
        "stats",
        "storage",
        "streams",
        "tail",
        "top",
        "topics",
        "tx",
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_shows_examples(path, capsys):
    code, out, _ = run(capsys, *path, "--help")
    assert code == 0
    assert f"broker {' '.join(path)}" in out.partition("\n")[2]
    assert "``" not in out


WITHOUT_JSON = {("chaos",), ("completion",)}
"""chaos is another program, which gets the option; completion writes a shell script, and refuses it."""


@pytest.mark.parametrize("path", [path for path in ALL if path not in WITHOUT_JSON])
def test_every_command_can_write_json(path, capsys):
    assert "--json" in run(capsys, *path, "--help")[1]


def test_a_command_that_can_not_write_json_refuses_the_option_before_its_name(capsys, monkeypatch):
    code, _, err = run(capsys, "--json", "completion", "bash")
    assert (code, json.loads(err)["code"]) == (2, "usage")
    ran = []
    monkeypatch.setattr(os, "execv", lambda _, command: ran.extend(command))
    run(capsys, "--json", "chaos", "nemeses")
    assert ran[-2:] == ["nemeses", "--json"]


def test_version_is_an_option(capsys):
    assert __version__ in run(capsys, "--version")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "audit", "x"), "NAMESPACE/TOPIC"),
        (("publish", "a/b"), "--lines"),
        (("publish", "a/b", "x", "--lines", "-"), "--lines"),
        (("publish", "a/b", "x", "--file", "f"), "--file"),
        (("publish", "a/b", "-", "x"), "give no other message"),
        (("publish", "a/b", "-5"), "Write -- before a message"),
        (("publish", "a/b", "x", "--header", "a"), "NAME=VALUE"),
        (("publish", "a/b", "x", "--header", "a=1", "--header", "a=2"), "is given twice"),
        (("publish", "a/b!", "x"), "b!"),
        (("tail", "a/b", "--since", "yesterday"), "neither a duration"),
        (("tail", "a/b", "--after", "12"), "40 hex digits"),
        (("tail", "a/b", "--after", "00" * 20, "--since", "1h"), "not both"),
        (("tail", "a/b", "--last", "2", "--since", "1h"), "not both"),
        (("poll", "a/b", "--last", "2", "--after", "00" * 20), "not both"),
        (("browse", "a/b", "--last", "2", "--since", "1h"), "not both"),
        (("tail", "a/b", "--until", "1h", "--follow"), "remove --follow"),
        (("tail", "a/b", "--until", "9999-01-01"), "in the future"),
        (("tail", "a/b", "-f", "{paylod}"), "did you mean {payload}?"),
        (("poll", "a/b", "-f", "{id}", "--ids"), "--format or --ids"),
        (("browse", "a/b", "-f", "{id}", "--json"), "--format or --json"),
        (("tail", "a/b", "--exec", "it's"), "No closing quotation"),
        (("topics", "create", "a/b", "ttl"), "NAME=VALUE"),
        (("topics", "set", "a/b"), "Name a property to change"),
        (("poll", "a/b", "--url", "localhost:1"), "http://HOST:PORT"),
        (("poll", "a/b", "--url", "http://a:1,http://b:99999"), "'http://b:99999' is not"),
        (("poll", "a/b", "--url", "http://:80"), "http://HOST:PORT"),
        (("serve", "--port", "http"), "--port: server.port = 'http': 'http' is not a whole number"),
        (("serve", "--drain", "soon"), "'soon' is not a number"),
        (("serve", "--log-level", "loud"), "'loud' is not one of debug, info, warning, error"),
        (("serve", "--no-such-key", "1"), "No such option"),
    ],
)
def test_a_wrong_command_line_is_2_and_names_the_mistake(words, said, capsys):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "publish", "a/b"),
        ("publish", "--json", "a/b", "--ttl", "soon"),
        ("topics", "--json", "nothing"),
        ("poll", "a/b", "--url", "localhost:1", "--json"),
        ("storage", "verify", "there-is-none", "--json"),
        ("context", "use", "there-is-none", "--json"),
        ("config", "--port", "http", "--json"),
        ("topics", "delete", "a/b", "--json"),
        ("cursors", "delete", "a/b", "c", "--json"),
        ("purge", "a/b", "--before", "now", "--json"),
        ("tx", "abort", "7", "--json"),
        ("tx", "invalidate", "7", "--json"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_json_too(words, capsys):
    code, out, err = run(capsys, *words)
    told = json.loads(err)
    assert (code, out) == (2, "")
    assert told.keys() == {"code", "message", "retriable", "outcome"}
    assert told["code"] in {"usage", "config"}
    assert (told["retriable"], told["outcome"]) == (False, "refused")


def test_json_behind_two_dashes_is_a_message():
    assert app.asks_for_json(["publish", "a/b", "x", "--json"])
    assert not app.asks_for_json(["publish", "a/b", "--", "--json"])


@pytest.mark.parametrize("name", ["BROKER_ULR", "BROKER_CONTXT"])
def test_a_misspelt_variable_is_an_error(name, capsys, monkeypatch):
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    code, out, err = run(capsys, "poll", "a/b")
    assert (code, out) == (2, "")
    assert name in err
    assert {"BROKER_ULR": "BROKER_URL", "BROKER_CONTXT": "BROKER_CONTEXT"}[name] in err


def raising(error):
    def load(**_):
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (OSError(28, "No space left on device"), "io", 3),
        (ZeroDivisionError("by zero"), "internal", 3),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_an_unexpected_error_has_an_unknown_outcome(error, code, exit_code, capsys, monkeypatch):
    monkeypatch.setattr("broker.config.sources.load", raising(error))
    ended, out, err = run(capsys, "config", "--json")
    told = json.loads(err)
    assert (ended, out) == (exit_code, "")
    assert (told["code"], told["outcome"]) == (code, "unknown")
    assert ("Traceback" in told.get("details", "")) is (code == "internal")
    ended, out, err = run(capsys, "config")
    assert (ended, out) == (exit_code, "")
    assert ("Traceback" in err) is (code == "internal")


def words_of(advice):
    """Yield the words of each command that an advice names."""
    for part in advice.split("broker ")[1:]:
        yield part.split(". ")[0].split("; ")[0].split(", ")[0].splitlines()[0].split()


@pytest.mark.parametrize("code", ADVICE)
@pytest.mark.parametrize("command", ["publish", "topics show", "cluster status", "stats", "tail"])
def test_advice_names_an_existing_command_other_than_the_failed_one(code, command):
    kinds = [kind for kind in errors.registry() if kind.code == code]
    given = GivenOptions(command=command, topics=[TopicId("audit", "logins")])
    for kind in kinds:
        if kind is errors.Unavailable:
            continue  # Its advice depends on the address, see below.
        for words in words_of(problem_of(kind("no"), given).advice):
            assert is_there(app.cli, words), words
            assert " ".join(words[: len(command.split())]) != command
            assert "NS/TOPIC" not in words


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (GivenOptions(command="tail"), "broker topics create audit/logins"),
        (
            GivenOptions(command="tail", typed_url="http://a:1"),
            "broker topics create audit/logins --url http://a:1",
        ),
        (GivenOptions(command="stats", typed_context="p"), "broker topics list audit --context p"),
    ],
)
def test_advice_is_for_the_broker_that_was_asked(known, said):
    known.topics.append(TopicId("audit", "logins"))
    assert problem_of(errors.TopicNotFound("no"), known).advice.endswith(f": {said}")


def is_there(group, words):
    command = group.commands.get(words[0])
    if isinstance(command, click.Group):
        return is_there(command, words[1:])
    options = {name for option in command.params for name in option.opts} if command else set()
    return bool(options) and {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(
    ("url", "context", "said"),
    [
        ("http://127.0.0.1:8080", "", "broker serve"),
        ("http://localhost:9000", "", "broker serve --port 9000"),
        ("http://127.0.0.1:8080", "here", "broker context show here"),
    ],
)
def test_advice_for_an_unreachable_broker_is_to_start_it_at_that_address(url, context, said):
    target = BrokerTarget(url, "the default", context=context)
    advice = problem_of(errors.Unavailable("down"), GivenOptions(target=target)).advice
    assert said in advice
    assert url in advice
    elsewhere = BrokerTarget("https://broker1:8080", "BROKER_URL")
    advice = problem_of(errors.Unavailable("down"), GivenOptions(target=elsewhere)).advice
    assert "broker serve" not in advice
    assert "BROKER_URL" in advice


@pytest.mark.parametrize(
    "command",
    [("poll",), ("tail",), ("tail", "--no-follow"), ("browse",), ("stats",)],
    ids=" ".join,
)
def test_a_broker_that_is_not_there_is_4(capsys, command):
    words = (*command, "a/b", "--url", "http://127.0.0.1:1", "--deadline", "0.1")
    code, _, err = run(capsys, *words)
    assert code == 4
    assert "broker serve --port 1" in err
    code, _, err = run(capsys, *words, "--json")
    assert code == 4
    assert json.loads(err)["retriable"] is True


def test_the_configuration_is_shown_with_its_sources(capsys, tmp_path, monkeypatch):
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


def test_every_key_is_a_flag_of_each_command_that_reads_the_configuration(capsys):
    for name in ("serve", "config"):
        flags = {flag for option in app.cli.commands[name].params for flag in option.opts}
        assert {known.flag for known in iter_keys()} <= flags
    words = [word for known in iter_keys() for word in (known.flag, as_text(known.default))]
    _, out, _ = run(capsys, "config", *words, "--json")
    told = json.loads(out)
    assert {known.dotted: f"flag {known.flag}" for known in iter_keys()} == {
        key: value["source"] for key, value in told.items()
    }


def test_an_unusable_folder_is_named(capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()
    code, _, err = run(capsys, "serve", "--port", "0", "--data-dir", str(file))
    assert code == 1
    assert f"can't serve the data directory {file}: {file} is a file. Name another directory" in err
    below = file / "below"
    _, _, err = run(capsys, "serve", "--port", "0", "--data-dir", str(below))
    assert f"can't serve the data directory {below}: {file} is a file" in err


def listening(cause, port=80):
    return CannotListen(cause, "10.9.8.7", port)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/proc/x"), "ulimit -n"),
        (listening(OSError(errno.EADDRINUSE, "no"), 81), "broker serve --thrift-port 82"),
        (listening(OSError(errno.EADDRINUSE, "no")), "on 10.9.8.7:80: another program listens"),
        (
            listening(OSError(errno.EADDRNOTAVAIL, "no")),
            "has no address 10.9.8.7. Name one of its own",
        ),
        (listening(socket.gaierror(-2, "not known")), "no address is known for the name"),
        (listening(PermissionError(errno.EACCES, "no")), "ports below 1024"),
        (PermissionError(errno.EACCES, "Permission denied", "data/LOCK"), "owns the directory"),
        (OSError(errno.EROFS, "Read-only file system", "data/LOCK"), "for writing"),
        (OSError(errno.ENOSPC, "No space left on device", "data/IDENTITY.new"), "Free some space"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "data/db"), "Name another directory"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/key"), "/x/key: Permission denied"),
    ],
)
def test_a_node_that_does_not_start_names_the_thing_and_the_next_step(error, said):
    config = Config(
        server=ServerConfig(host="10.9.8.7", port=80),
        access=AccessConfig(access_mode=AccessMode.OPEN),
        storage=StorageConfig(data_dir=Path("data")),
        transactions=TransactionsConfig(thrift_port=81),
    )
    assert said in cannot_serve(error, config)


def test_a_store_in_a_file_is_no_unknown_outcome(capsys, tmp_path):
    (tmp_path / "file").touch()
    asyncio.run(made_store(tmp_path / "data"))
    for words in (
        ("storage", "init", str(tmp_path / "file" / "below")),
        ("storage", "init", str(tmp_path / "file")),
        ("storage", "repair", str(tmp_path / "data"), str(tmp_path / "file" / "copy")),
    ):
        code, _, err = run(capsys, *words)
        assert code == 1
        assert f"{tmp_path / 'file'} is a file. Name another directory" in err


def test_a_link_that_leads_nowhere_is_named(capsys, tmp_path):
    link = tmp_path / "data"
    link.symlink_to(tmp_path / "unmounted" / "data")
    for words in (
        ("serve", "--port", "0", "--data-dir", str(link)),
        ("storage", "init", str(link)),
    ):
        code, _, err = run(capsys, *words)
        assert (code, f"{link} is a link that leads nowhere. Name another" in err) == (1, True), err


@pytest.mark.parametrize("words", [("serve", "--port", "0", "--data-dir"), ("storage", "init")])
def test_a_full_disk_is_named_although_the_error_of_a_sync_names_no_file(
    capsys, tmp_path, monkeypatch, words
):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run(capsys, *words, str(tmp_path / "data"))
    assert (code, f"the data directory {tmp_path / 'data'}: No space left" in err) == (1, True), err
    assert "Free some space" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", " is not text in UTF-8: see byte 0"),
        (b"x = = 1", " is not TOML: "),
        (b"x = " + b"[" * 5000, " is not TOML: "),
        (b"[server]\nport = " + b"9" * 5000, " is not TOML: "),
        (b"\xef\xbb\xbf[server]\nprot = 1", ": there is no key 'server.prot'"),
    ],
)
def test_a_configuration_that_can_not_be_read_is_named(capsys, tmp_path, content, said):
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    code, _, err = run(capsys, "serve", "--config", str(file))
    assert (code, err.startswith(f"broker: {file}{said}")) == (2, True), err


def test_damage_is_reported_with_the_commands_that_show_and_repair_it(capsys, tmp_path):
    data = tmp_path / "data"
    asyncio.run(made_store(data))
    (data / "IDENTITY").write_bytes(b"\xff")
    steps = (
        f"See the damage with: broker storage verify {data}\n"
        f"Restore a backup, or make a repaired copy with: broker storage repair {data} COPY\n"
    )
    for words in (
        ("serve", "--port", "0", "--data-dir", str(data)),
        ("storage", "show", "a/b", "--dir", str(data)),
        ("storage", "sweep", str(data)),
    ):
        code, _, err = run(capsys, *words)
        assert code == 3
        assert err.endswith(steps), words
        assert "Traceback" not in err
    code, out, err = run(capsys, "storage", "verify", str(data))
    assert (code, err) == (1, steps.splitlines(keepends=True)[1])
    assert "storage verify" not in out, "advice that leads back here"
    code, _, err = run(capsys, "storage", "repair", str(data), str(tmp_path / "copy"))
    assert (code, err) == (0, f"Serve the copy with: broker serve --data-dir {tmp_path / 'copy'}\n")


def test_damage_that_leveldb_finds_names_the_store_and_not_the_snapshot(capsys, tmp_path):
    data = tmp_path / "data"
    asyncio.run(made_store(data))
    (data / "db" / "CURRENT").write_text("junk\n")
    _, out, _ = run(capsys, "storage", "verify", str(data))
    assert "check-" not in out
    assert f"NotFound: {data}/db/junk" in out


async def made_store(directory):
    await (await open_table(directory)).close()


def test_the_advice_for_a_taken_port_names_another(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run(capsys, "serve", "--port", str(port), "--data-dir", str(tmp_path / "d"))
    assert code == 1
    assert f"127.0.0.1:{port}: another program listens there" in err
    assert f"broker serve --port {port % 65_535 + 1}" in err


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


@pytest.mark.parametrize(
    "words", [["serve"], ["config"], ["cluster", "up"], ["cluster", "status"], ["storage", "init"]]
)
def test_a_variable_that_names_no_key_is_2(words, capsys, monkeypatch):
    monkeypatch.setenv("BROKER_PORT", "9000")
    code, _, error = run(capsys, *words)
    assert code == 2
    assert "BROKER_PORT: there is no such key; did you mean BROKER_SERVER__PORT?" in error
