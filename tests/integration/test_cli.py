"""The commands against a whole broker, as users and scripts run them."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.cli.command import completion
from broker.cli.messages import publish as publishing
from broker.cli.messages.publish import LONG_BYTES
from broker.client import NewMessage, SyncClient
from broker.config.sections import Config, LimitsConfig
from broker.testing.broker_process import BrokerProcess
from tests.kit.commands import in_this_process
from tests.kit.served import ServedNode

LINES = [b"first", b"", b"\xff\x00 not text", b"last without an end"]


Broker = Callable[..., "Done"]


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def broker(
    node: ServedNode, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """A function that runs a command in this process, with its output as bytes."""
    monkeypatch.setenv("BROKER_URL", node.url)
    run = in_this_process(capfdbinary, monkeypatch)
    return lambda *words, **given: Done(*run(*words, **given))


def done(completed: Done) -> bytes:
    assert (completed.returncode, completed.stderr.count(b"Traceback")) == (0, 0), completed.stderr
    return completed.stdout


def test_topics_are_created_listed_shown_changed_and_deleted(broker: Broker) -> None:
    done(broker("topics", "create", "cli/a", "color=red", "--any-property", "--ttl", "60"))
    assert broker("topics", "create", "cli/a").returncode == 1
    done(broker("topics", "create", "cli/a", "--keep"))
    assert done(broker("topics", "list", "cli")) == b"cli/a\n"
    done(broker("topics", "set", "cli/a", "--ttl", "70"))
    shown = json.loads(done(broker("topics", "show", "cli/a", "--json")))
    assert shown["ttl_s"] == 70
    assert shown["properties"]["color"] == "red"
    assert b"red" in done(broker("topics", "show", "cli/a"))
    done(broker("topics", "set", "cli/a", "--replace"))
    shown = json.loads(done(broker("topics", "show", "cli/a", "--json")))
    assert "color" not in shown["properties"]
    asked = broker("topics", "delete", "cli/a", stdin=b"n\n")
    assert (asked.returncode, asked.stdout) == (130, b"")
    assert b"Delete cli/a" in asked.stderr
    assert broker("topics", "delete", "cli/a", "--json").returncode == 2
    done(broker("topics", "delete", "cli/a", "--yes"))
    assert json.loads(done(broker("topics", "list", "cli", "--json"))) == []


def test_a_tail_without_a_broker_says_what_it_tries_before_it_gives_up() -> None:
    with socket.socket() as taken:  # Bound, not listening: it refuses connections.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "broker.cli", "tail", "a/b", "--url", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
            assert tail.stderr is not None
            told = tail.stderr.readline().decode()
            assert tail.poll() is None, "it goes on trying"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(30) == 130
    assert told.startswith(f"broker: can't reach {url}: connection refused")
    assert "retrying for 30 s" in told


def test_a_shell_completes_the_topics_of_the_broker(broker: Broker, node: ServedNode) -> None:
    done(broker("topics", "create", "completed/logins"))
    done(broker("topics", "create", "completed/others"))
    done(broker("topics", "create", "completed_too/others"))
    offers = {
        "completed/l": [b"completed/logins"],
        "completed_": [b"completed_too/others"],
        "complet": [b"completed/", b"completed_too/"],
    }
    for typed, offered in offers.items():
        words = {"COMP_WORDS": f"broker tail {typed}", "COMP_CWORD": "2"}
        asked = {completion.VARIABLE: "bash_complete", **words, "BROKER_URL": node.url}
        answered = subprocess.run(
            [sys.executable, "-m", "broker.cli"],
            env={**os.environ, **asked},
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert answered.stdout.split() == [b"plain," + word for word in offered]
        assert answered.stderr == b""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tl=5"], b"knows no property 'tl'; did you mean ttl?"),
        (
            ["color=red"],
            b"it knows ttl and transactions. To keep a property of your own: --any-property",
        ),
        (["ttl=5", "ttl=6"], b"ttl is given twice"),
        (["generation=9"], b"generation can't be set"),
        (["generation=9", "--any-property"], b"generation can't be set"),
        (["ttl"], b"'ttl' is not NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("command", ["create", "set"])
def test_properties_without_a_meaning_are_refused(
    broker: Broker, command: str, words: list[str], told: bytes
) -> None:
    done(broker("topics", "create", "cli/known", "--keep"))
    topic = "cli/known" if command == "set" else "cli/unknown"
    refused = broker("topics", command, topic, *words)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert told in refused.stderr
    assert done(broker("topics", "list", "cli")) == b"cli/known\n"
    done(broker("topics", "delete", "cli/known", "--yes"))


def test_a_lifetime_is_given_once(broker: Broker) -> None:
    refused = broker("topics", "create", "cli/twice", "--ttl", "60", "ttl=70")
    assert refused.returncode == 2
    assert b"ttl is given twice" in refused.stderr


def test_a_property_of_your_own_is_kept(broker: Broker) -> None:
    done(broker("topics", "create", "cli/own"))
    done(broker("topics", "set", "cli/own", "team=core", "--any-property"))
    done(broker("topics", "set", "cli/own", "ttl=70"))
    shown = json.loads(done(broker("topics", "show", "cli/own", "--json")))
    assert shown["properties"] == {"generation": "1", "team": "core", "ttl": "70"}
    done(broker("topics", "delete", "cli/own", "--yes"))


def test_lines_come_back_byte_for_byte(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(LINES))
    done(broker("topics", "create", "cli/lines"))
    told = broker("publish", "cli/lines", "--lines", str(file))
    assert b"published 4 messages" in told.stderr
    done(broker("publish", "cli/lines", "--lines", "-", stdin=b"from a pipe\n"))
    expected = b"".join(line + b"\n" for line in [*LINES, b"from a pipe"])
    assert done(broker("tail", "cli/lines", "--no-follow")) == expected
    assert done(broker("poll", "cli/lines")) == expected
    rows = [
        json.loads(row) for row in done(broker("poll", "cli/lines", "--json")).split(b"\n")[:-1]
    ]
    assert [row["encoding"] for row in rows] == ["text", "text", "base64", "text", "text"]
    page = json.loads(done(broker("browse", "cli/lines", "--limit", "2", "--json")))
    assert [row["payload"] for row in page["messages"]] == ["first", ""]
    following = done(broker("browse", "cli/lines", "--since", page["next"], "--full"))
    assert b"not text" in following
    newest = broker("browse", "cli/lines", "--limit", "2", "--desc")
    assert [line.split()[-1] for line in newest.stdout.splitlines()[1:]] == [b"pipe", b"end"]
    more = newest.stderr.decode().split()
    assert more[:2] == ["more:", "--until"]
    before = done(broker("browse", "cli/lines", "--desc", *more[1:], "--json"))
    assert [row["payload"] for row in json.loads(before)["messages"]][1:] == ["", "first"]
    assert b"5" in done(broker("stats", "cli/lines"))
    last = rows[-2]["id"]
    assert done(broker("tail", "cli/lines", "--after", last, "--no-follow")) == b"from a pipe\n"
    assert done(broker("tail", "cli/lines", "--since", "1h", "--limit", "1")) == b"first\n"


def test_a_key_and_headers_travel_with_each_message(broker: Broker, tmp_path: Path) -> None:
    done(broker("topics", "create", "cli/attributed"))
    words = ("--key", "k=\u00e9", "--header", "type=a=b", "--header", "empty=")
    done(broker("publish", "cli/attributed", "one", *words))
    file = tmp_path / "lines"
    file.write_bytes(b"two\nthree\n")
    done(broker("publish", "cli/attributed", "--lines", str(file), "--key", os.fsdecode(b"\xff")))
    for command in (("tail", "--no-follow"), ("poll",)):
        read = done(broker(*command, "cli/attributed", "--json")).splitlines()
        rows = [json.loads(row) for row in read]
        assert [row["key"] for row in rows] == ["k=\u00e9", {"base64": "/w=="}, {"base64": "/w=="}]
        assert [row["headers"] for row in rows] == [{"type": "a=b", "empty": ""}, {}, {}]
    page = json.loads(done(broker("browse", "cli/attributed", "-n", "1", "--json")))["messages"]
    assert (page[0]["key"], page[0]["headers"]) == (rows[0]["key"], rows[0]["headers"])
    for command in (("tail", "--no-follow"), ("poll",), ("browse",)):
        lines = done(broker(*command, "cli/attributed", "-f", "{key}|{headers}|{payload}"))
        assert lines == b"k=\xc3\xa9|type=a=b,empty=|one\n\xff||two\n\xff||three\n"


def test_all_topics_are_listed_with_their_namespaces(broker: Broker) -> None:
    for name in ("listed1/b", "listed1/a", "listed2/c"):
        done(broker("topics", "create", name))
    spaces = done(broker("namespaces")).decode().split()
    assert spaces == sorted(spaces)
    assert set(spaces) >= {"listed1", "listed2"}
    assert json.loads(done(broker("namespaces", "--json"))) == spaces
    names = done(broker("topics", "list")).decode().split()
    assert set(names) >= {"listed1/a", "listed1/b", "listed2/c"}
    assert json.loads(done(broker("topics", "list", "--json"))) == names
    one = json.loads(done(broker("topics", "list", "listed1", "--json")))
    assert sorted(one) == ["listed1/a", "listed1/b"]


def test_in_a_context_with_a_namespace_topics_have_short_names(
    broker: Broker, node: ServedNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BROKER_URL")
    done(broker("context", "add", "here", "--url", node.url, "--namespace", "short"))
    done(broker("context", "use", "here"))
    done(broker("topics", "create", "logins"))
    done(broker("publish", "logins", "one"))
    assert done(broker("poll", "short/logins")) == b"one\n"
    assert done(broker("topics", "list")) == b"short/logins\n"
    missing = broker("stats", "others")
    assert b"broker topics list short" in missing.stderr


def test_all_reading_commands_take_the_same_spans_and_layouts(broker: Broker) -> None:
    done(broker("topics", "create", "cli/spans"))
    for number in range(5):
        done(broker("publish", "cli/spans", f"m{number}"))
    rows = [json.loads(row) for row in done(broker("poll", "cli/spans", "--json")).splitlines()]
    ids = [row["id"] for row in rows]
    assert [rows[0][name] for name in ("key", "headers", "encoding")] == [None, {}, "text"]
    assert rows[0]["time"].endswith("Z")
    layout = ("-f", r"{id}\t{payload}")
    lines = [f"{one}\tm{number}" for number, one in enumerate(ids)]
    for command in (("tail", "--no-follow"), ("poll",), ("browse",)):
        read = partial(broker, *command, "cli/spans", *layout)
        assert done(read()).decode().splitlines() == lines
        assert done(read("--last", "2")).decode().splitlines() == lines[3:]
        assert done(read("--last", "2", "--until", ids[4])).decode().splitlines() == lines[2:4]
        assert done(read("--since", ids[1], "--until", ids[3])).decode().splitlines() == lines[1:3]
        assert done(read("-n", "1", "--since", "1h")).decode().splitlines() == lines[:1]
    bounded = broker("tail", "cli/spans", "--until", rows[4]["time"], *layout)
    assert done(bounded).decode().splitlines() == lines[:4]


def test_the_broker_bounds_the_number_of_browsed_messages(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = in_this_process(capfd, monkeypatch)
    with ServedNode(Config(limits=LimitsConfig(browse_messages_max=20_000))) as node:
        monkeypatch.setenv("BROKER_URL", node.url)
        assert run("topics", "create", "cli/many")[0] == 0
        assert run("publish", "cli/many", "one")[0] == 0
        for words in (("browse", "-n"), ("browse", "--last"), ("poll", "--last")):
            command = (words[0], "cli/many", words[1])
            code, out, _ = run(*command, "20000")
            assert (code, "one" in out) == (0, True)
            code, _, said = run(*command, "20001")
            assert (code, "from 1 to 20000" in said) == (1, True), said


def test_a_tail_shows_the_newest_messages_before_new_ones(broker: Broker, node: ServedNode) -> None:
    done(broker("topics", "create", "cli/newest"))
    done(broker("publish", "cli/newest", "one", "two", "three"))
    with following(node, "cli/newest", "--last", "2") as tail:
        assert tail.stdout is not None
        assert [tail.stdout.readline() for _ in range(2)] == [b"two\n", b"three\n"]
        done(broker("publish", "cli/newest", "four"))
        assert tail.stdout.readline() == b"four\n"
        tail.send_signal(signal.SIGINT)


def test_a_cursor_of_another_topic_or_of_one_that_was_deleted_is_refused(
    broker: Broker, tmp_path: Path
) -> None:
    for topic in ("cli/kept", "cli/other"):
        done(broker("topics", "create", topic))
        done(broker("publish", topic, "one", "two"))
    file = tmp_path / "kept.cursor"
    words = ("--no-follow", "--cursor", str(file))
    assert done(broker("tail", "cli/kept", "-n", "1", *words)) == b"one\n"
    other = broker("tail", "cli/other", *words)
    assert (other.returncode, other.stdout) == (1, b"")
    assert b"belongs to cli/kept" in other.stderr
    done(broker("topics", "delete", "cli/kept", "--yes"))
    done(broker("topics", "create", "cli/kept"))
    anew = broker("tail", "cli/kept", *words, "--json")
    assert anew.returncode == 1
    assert "generation 1, now 2" in json.loads(anew.stderr)["message"]


def test_a_key_makes_the_same_command_publish_once(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % i for i in range(2500)))
    done(broker("topics", "create", "cli/keyed"))
    lines = ("publish", "cli/keyed", "--lines", str(file), "--idempotency-key", "once")
    word = ("publish", "cli/keyed", "word", "--idempotency-key", "twice")
    told = [broker(*command) for command in (lines, word, lines, word)]
    rows = [json.loads(row) for row in done(broker("poll", "cli/keyed", "--json")).splitlines()]
    assert len(rows) == 2501
    first, last, identifier = (rows[place]["id"].encode() for place in (0, -2, -1))
    to = b"2,500 messages to cli/keyed: " + first + " … ".encode() + last + b"\n"
    again = b"already published with the same idempotency key: "
    assert [each.stdout for each in told] == [b"", identifier + b"\n"] * 2
    assert [each.stderr for each in told] == [
        b"published " + to,
        b"",
        again + to,
        again + b"1 message to cli/keyed: " + identifier + b"\n",
    ]
    in_json = json.loads(done(broker(*word, "--json")))
    assert in_json == {
        "topic": "cli/keyed",
        "published": 1,
        "already_published": 1,
        "first_id": identifier.decode(),
        "last_id": identifier.decode(),
        "ids": [identifier.decode()],
    }


def test_a_publish_prints_an_id_for_each_message(broker: Broker) -> None:
    done(broker("topics", "create", "cli/ids"))
    printed = done(broker("publish", "cli/ids", "a", "b", "c")).decode().split()
    more = json.loads(done(broker("publish", "cli/ids", "d", "e", "--json")))
    polled = [
        json.loads(row)["id"] for row in done(broker("poll", "cli/ids", "--json")).splitlines()
    ]
    assert polled == printed + more["ids"]
    assert (more["first_id"], more["last_id"]) == (polled[3], polled[4])


def test_a_failing_command_stops_the_tail_and_its_message_is_read_again(
    broker: Broker, tmp_path: Path
) -> None:
    done(broker("topics", "create", "cli/exec"))
    done(broker("publish", "cli/exec", "good", "bad", "later"))
    script = tmp_path / "handle"
    script.write_text(
        "#!/bin/sh\nread -r message\necho $BROKER_TOPIC $BROKER_MESSAGE_ID $message\n"
        f"test $message != bad -o -e {tmp_path}/mended\n"
    )
    script.chmod(0o755)
    words = ("tail", "cli/exec", "--no-follow", "--exec", str(script))
    cursor = ("--cursor", str(tmp_path / "cursor"))
    first = broker(*words, *cursor)
    assert first.returncode == 3
    assert [line.split()[2] for line in first.stdout.splitlines()] == [b"good", b"bad"]
    assert b"--since" in first.stderr
    (tmp_path / "mended").touch()
    second = done(broker(*words, *cursor))
    assert [line.split()[2] for line in second.splitlines()] == [b"bad", b"later"]
    assert done(broker(*words, *cursor)) == b""


def test_one_message_comes_from_a_file_or_from_standard_input(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(broker("topics", "create", "cli/whole"))
    content = b"a\r\n\x00\xff\n\n"
    file = tmp_path / "whole"
    file.write_bytes(content)
    done(broker("publish", "cli/whole", "--file", str(file)))
    done(broker("publish", "cli/whole", "-", stdin=content))
    done(broker("publish", "cli/whole", "--file", "-", stdin=b""))
    done(broker("publish", "cli/whole", "--", "-5", "--json"))
    expected = [content, content, b"", b"-5", b"--json"]
    assert done(broker("poll", "cli/whole")) == b"".join(each + b"\n" for each in expected)
    missing = broker("publish", "cli/whole", "--file", str(tmp_path / "none"), "--json")
    assert missing.returncode == 1
    assert "No such file" in json.loads(missing.stderr)["message"]
    monkeypatch.setattr(publishing, "MESSAGE_BYTES_MAX", 10)
    for words in (("-",), ("--file", str(file))):
        file.write_bytes(bytes(11))
        larger = broker("publish", "cli/whole", *words, stdin=bytes(11))
        assert larger.returncode == 1
        assert b"--lines" in larger.stderr
    assert len(done(broker("poll", "cli/whole", "-f", "{id}")).splitlines()) == len(expected)


def test_a_message_above_the_brokers_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(2 << 20))
    with BrokerProcess(tmp_path / "data", ["--body-bytes-max", "1048576"]) as process:
        command = [sys.executable, "-m", "broker.cli", "publish", "a/b", "--url", process.url]
        with SyncClient(process.url) as client:
            client.create_topic("a/b")
        large = subprocess.run([*command, "--file", str(file)], capture_output=True, check=False)
    assert large.returncode == 1
    assert b"1,048,576 bytes" in large.stderr
    assert b"broker serve --body-bytes-max" in large.stderr


def test_words_are_published_as_they_were_typed(broker: Broker) -> None:
    done(broker("topics", "create", "cli/words"))
    done(broker("publish", "cli/words", os.fsdecode(b"\xff no text"), "text \u00e9"))
    assert done(broker("tail", "cli/words", "--no-follow")) == b"\xff no text\ntext \xc3\xa9\n"


@pytest.mark.parametrize(("size", "is_shown"), [(LONG_BYTES, True), (LONG_BYTES - 1, False)])
def test_a_long_file_has_a_progress_bar_on_a_terminal(
    node: ServedNode, broker: Broker, tmp_path: Path, size: int, is_shown: bool
) -> None:
    done(broker("topics", "create", "cli/bar", "--keep"))
    file = tmp_path / "lines"
    file.write_bytes((b"x" * 1023 + b"\n") * (size // 1024) + b"y" * (size % 1024))
    terminal, its_end = os.openpty()
    command = [sys.executable, "-m", "broker.cli", "publish", "cli/bar", "--lines", str(file)]
    environment = {**os.environ, "BROKER_URL": node.url, "TERM": "xterm"}
    with subprocess.Popen(command, stderr=its_end, env=environment) as publishing:
        os.close(its_end)
        shown = read_terminal(terminal)
        assert publishing.wait(60) == 0
    assert (b"publishing" in shown) is is_shown
    assert b"published 1,024 messages" in shown
    quiet = broker("publish", "cli/bar", "--lines", str(file))
    assert quiet.stderr.startswith(b"published 1,024 messages to cli/bar: ")


def read_terminal(terminal: int) -> bytes:
    """Read the output of a terminal until no process has it open."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as reading, suppress(OSError):
        while more := reading.read(4096):
            shown += more
    return shown


def test_messages_that_were_not_read_do_not_count_as_handled(
    broker: Broker, node: ServedNode, tmp_path: Path
) -> None:
    done(broker("topics", "create", "cli/unread"))
    done(broker("publish", "cli/unread", "one", "two"))
    cursor = tmp_path / "cursor"
    program = "import sys; from broker.cli import main; sys.stdin.read(1); main()"
    words = ("tail", "cli/unread", "--no-follow", "--cursor", str(cursor), "--url", node.url)
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as unread:
        assert unread.stdout is not None
        unread.stdout.close()
        unread.communicate(b"x", timeout=60)
    assert unread.returncode == 0
    assert not cursor.exists()
    assert done(broker(*words)) == b"one\ntwo\n"


def following(node: ServedNode, topic: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "broker.cli", "tail", topic, "--url", node.url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_node_with_a_variable_that_names_no_key_does_not_start(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli", "serve", "--port", "0", "--data-dir", str(data_dir)],
        env={**os.environ, "BROKER_PORT": "9000"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "BROKER_PORT: there is no such key; did you mean BROKER_SERVER__PORT?" in done.stderr
    assert not data_dir.exists()


def test_ctrl_c_and_a_closed_pipe_end_a_tail_quietly(node: ServedNode, broker: Broker) -> None:
    done(broker("topics", "create", "cli/follow"))
    done(broker("publish", "cli/follow", "one"))
    with following(node, "cli/follow") as interrupted:
        assert interrupted.stdout is not None
        assert interrupted.stdout.readline() == b"one\n"
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(30) == 130
        assert interrupted.stderr is not None
        assert interrupted.stderr.read() == b"\n"
    with following(node, "cli/follow") as cut:
        assert cut.stdout is not None
        assert cut.stdout.readline() == b"one\n"
        cut.stdout.close()
        done(broker("publish", "cli/follow", "two"))
        assert cut.wait(30) == 0
        assert cut.stderr is not None
        assert cut.stderr.read() == b""


def test_a_store_is_made_verified_swept_and_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "broker.cli", "storage"]

    def storage(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=60, check=False
        )

    assert storage("init", str(data)).returncode == 0
    assert storage("init", str(data)).returncode == 1
    with BrokerProcess(data) as process, SyncClient(process.url) as client:
        client.create_topic("a/b")
        client.publish("a/b", [b"1", b"2"])
        report = json.loads(storage("verify", str(data), "--json").stdout)
        assert (report["problems"], report["messages"]) == ([], 2)
        shown = json.loads(storage("show", "a/b", "--dir", str(data), "--json").stdout)
        assert [entry["count"] for entry in shown["entries"]] == [2]
        busy = storage("repair", str(data), str(tmp_path / "mended"))
        assert busy.returncode == 4
        assert "in use by another process" in busy.stderr
        assert "broker serve" not in busy.stderr
        told = json.loads(storage("sweep", str(data), "--json").stderr)
        assert (told["code"], told["retriable"]) == ("no_leader", True)
        assert process.stop() == 0
    report = json.loads(storage("verify", str(data), "--json").stdout)
    assert (report["problems"], report["messages"]) == ([], 2)
    shown = json.loads(storage("show", "a/b", "--dir", str(data), "--json").stdout)
    assert [entry["count"] for entry in shown["entries"]] == [2]
    swept = storage("sweep", str(data), "--json")
    assert (swept.returncode, swept.stderr) == (0, "")
    assert json.loads(swept.stdout)["topics"] == 1
    assert storage("repair", str(data), str(tmp_path / "mended")).returncode == 0
    assert storage("repair", str(data), str(tmp_path / "mended")).returncode == 1
    (data / "db" / "CURRENT").unlink()
    damaged = storage("verify", str(data))
    assert damaged.returncode == 1
    assert "CURRENT is missing" in damaged.stdout
    assert damaged.stdout.splitlines()[-1].startswith("problems: ")


def test_commands_do_not_create_a_missing_store(tmp_path: Path, broker: Broker) -> None:
    for command in ("verify", "sweep"):
        told = broker("storage", command, str(tmp_path))
        assert told.returncode == 1
        assert b"there is no store in" in told.stdout + told.stderr
    missing = broker("storage", "repair", str(tmp_path), str(tmp_path / "copy"))
    assert (missing.returncode, b"there is no store in" in missing.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_tail_reports_that_the_broker_is_away_and_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process, SyncClient(process.url) as client:
        client.create_topic("a/b")
        client.publish("a/b", b"0")
        command = [sys.executable, "-m", "broker.cli", "tail", "a/b", "--url", process.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            assert tail.stdout.readline() == b"0\n"
            process.kill()
            told = tail.stderr.readline().decode()
            process.start()
            client.publish("a/b", b"1")
            assert tail.stdout.readline() == b"1\n"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(30) == 130
    assert process.url in told
    assert "retrying until it works" in told


def test_a_tail_goes_on_while_the_broker_is_killed_and_started_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process, SyncClient(process.url) as client:
        client.create_topic("a/b")
        client.publish("a/b", [b"0", b"1"])
        with SyncClient(process.url) as reader:
            tail = reader.tail("a/b")
            found = [next(tail).payload, next(tail).payload]
            process.kill()
            process.start()
            client.publish("a/b", b"2")
            found.append(next(tail).payload)
            tail.close()
    assert found == [b"0", b"1", b"2"]


HOSTILE = "\x1b]0;owned\x07\x1b[2J\nforged  row\r\x9b31m\u202egpj\u2028\x7f"
OBEYED = re.compile("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def at_a_terminal(node: ServedNode, *words: str) -> str:
    """Run a command whose output is a terminal; return the text on the screen."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "broker.cli", *words]
    environment = {**os.environ, "BROKER_URL": node.url, "NO_COLOR": "1", "COLUMNS": "300"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # The end of a terminal is an error.
            while part := os.read(ours, 65_536):
                shown += part
    os.close(ours)
    assert running.returncode == 0, shown
    return shown.decode()


def test_text_of_others_neither_reaches_a_terminal_nor_forges_a_row(
    node: ServedNode, broker: Broker
) -> None:
    with SyncClient(node.url) as client:
        client.create_topic("cli/hostile", {f"note{HOSTILE}": HOSTILE})
        sent = NewMessage(HOSTILE.encode(), key=HOSTILE.encode(), headers={"h": HOSTILE.encode()})
        client.publish("cli/hostile", sent)
        client.cursors.put("cli/hostile", "mine", None, expected=None, data=HOSTILE)
    layout = ("-f", "{payload}|{key}|{headers}")
    for words in (
        ("topics", "show", "cli/hostile"),
        ("browse", "cli/hostile"),
        ("browse", "cli/hostile", *layout),
        ("poll", "cli/hostile", *layout),
        ("tail", "cli/hostile", "--no-follow"),
        ("cursors", "show", "cli/hostile", "mine"),
    ):
        shown = at_a_terminal(node, *words)
        assert not OBEYED.search(shown), (words, shown)
        assert not any(line.startswith("forged") for line in shown.splitlines()), (words, shown)
        assert "forged" in shown, words
    # A pipe gets the bytes.
    assert done(broker("tail", "cli/hostile", "--no-follow")) == HOSTILE.encode() + b"\n"
    written = done(broker("topics", "show", "cli/hostile", "--json")).decode()
    assert not OBEYED.search(written)
    assert json.loads(written)["properties"][f"note{HOSTILE}"] == HOSTILE
