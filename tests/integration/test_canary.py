"""A token is a canary: no output, log, file, pickle or list of processes of a real node and its callers has it."""

import asyncio
import base64
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from broker.client import Settings, SyncClient, Unauthenticated
from broker.testing.broker_process import BrokerProcess
from tests.kit.commands import in_this_process

NS = "/v1/namespaces/audit/topics"


async def raw(url, *lines):
    """Send the head of a request, and return the whole answer."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(("\r\n".join(lines) + "\r\nHost: h\r\nConnection: close\r\n\r\n").encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def texts(error):
    return "".join(traceback.format_exception(error)) + repr(error) + str(error.__dict__)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    for name in ("BROKER_URL", "BROKER_CONTEXT", "BROKER_TOKEN", "BROKER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return in_this_process(capsys, monkeypatch)


class Hunt:
    """A node that requires credentials, two tokens that must not be found, and all texts that were told."""

    def __init__(self, run, tmp_path):
        self.told, self._run = [], run
        data, self.file = tmp_path / "data", tmp_path / "admin.token"
        self.done("access", "init", "--data-dir", str(data), "--out", str(self.file))
        self.canary = self.file.read_text().strip()
        # A token that the node refuses is a secret, too: of another broker.
        self.stranger = "stranger-4f9c1a7be2"
        self.basic = base64.b64encode(f"me:{self.canary}".encode()).decode()
        flags = ("--access-mode", "required", "--log-level", "debug")
        self.node = BrokerProcess(data, flags, environment={"BROKER_TOKEN": self.stranger})

    def done(self, *words, code=0):
        found = self._run(*words)
        self.told.extend(found[1:])
        assert found[0] == code, found

    def with_commands(self, monkeypatch):
        """By a file, by a context, by the environment; and the uses that commands refuse."""
        url, with_file = self.node.url, ("--token-file", str(self.file))
        show = ("topics", "show", "audit/logins")
        self.done("topics", "create", "audit/logins", "--url", url, *with_file)
        self.done("context", "add", "a", "--url", url, *with_file)
        self.done(*show, "--context", "a", "--json")
        self.done("context", "list")
        self.done(*show, "--url", url, code=1)
        self.done(*show, "--url", url.replace("//", f"//me:{self.canary}@"), code=2)
        self.done(*show, "--url", f"{url}?token={self.canary}", code=2)
        monkeypatch.setenv("BROKER_TOKEN", self.stranger)
        self.done(*show, "--url", url, code=1)
        self.done("config")
        monkeypatch.setenv("BROKER_TOKEN", self.canary)
        self.done("publish", "audit/logins", "x", "--url", url)
        monkeypatch.setenv("BROKER_TOKN", self.canary)
        self.done("config", code=2)
        monkeypatch.delenv("BROKER_TOKN")
        monkeypatch.delenv("BROKER_TOKEN")

    def in_the_list_of_processes(self):
        """While the node and a command run."""
        words = ["tail", "audit/logins", "--url", self.node.url, "--token-file", str(self.file)]
        with subprocess.Popen(
            [sys.executable, "-m", "broker.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as tail:
            assert tail.stdout is not None
            first = tail.stdout.readline()
            lists = [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline")]
            tail.terminate()
            self.told.extend(each.decode("latin-1") for each in (first, tail.stdout.read(), *lists))
        assert any(b"--access-mode" in each for each in lists)
        assert any(b"--token-file" in each for each in lists)

    def in_the_client(self):
        """In its settings, errors and pickles."""
        for settings in (
            Settings(url=self.node.url, token=self.stranger),
            Settings(url=self.node.url, headers=(("Authorization", f"Basic {self.basic}x"),)),
        ):
            with SyncClient(settings=settings) as client:
                with pytest.raises(Unauthenticated) as refused:
                    client.publish("audit/logins", b"x")
                with pytest.raises(TypeError, match="not pickled") as unpickled:
                    pickle.dumps(client)
                self.told.extend([repr(settings), repr(client), texts(refused.value)])
                self.told.append(texts(unpickled.value))
        kept = Settings(url=self.node.url, token_file=str(self.file))
        with SyncClient(settings=kept) as client:
            client.publish("audit/logins", b"x")
            self.told.extend([repr(vars(client)), pickle.dumps(client).decode("latin-1")])

    async def in_answers_of_the_node(self):
        """To requests with credentials in a wrong place, or in a wrong form."""
        get = f"GET {NS}/logins HTTP/1.1"
        for lines in (
            (f"GET {NS}/logins?token={self.canary} HTTP/1.1",),
            (get, f"Authorization: Basic {self.basic}"),
            (get, f"Authorization: Bearer {self.stranger}"),
            (get, f"Authorization: {self.stranger}"),
            (get, f"Authorization: Bearer {self.canary} {self.stranger}"),
            (f"GET {NS}/logins?x=1 HTTP/1.1", f"Authorization: Bearer {self.canary}"),
            (f"BAD {NS}/logins?token={self.canary} HTTP/1.1",),
            (get, f"Authorization Bearer {self.canary}"),
        ):
            answer = await raw(self.node.url, *lines)
            assert answer.startswith(b"HTTP/1.")
            self.told.append(answer.decode("latin-1"))


def test_a_canary_is_found_nowhere(run, tmp_path, monkeypatch):
    hunt = Hunt(run, tmp_path)
    with hunt.node as node:
        hunt.with_commands(monkeypatch)
        hunt.in_the_list_of_processes()
        hunt.in_the_client()
        asyncio.run(hunt.in_answers_of_the_node())
    assert "request refused" in node.log_path.read_text()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != hunt.file]
    hunt.told.extend(path.read_bytes().decode("latin-1") for path in files)
    for secret in (hunt.canary, hunt.stranger, hunt.basic):
        found = [text for text in hunt.told if secret in text]
        assert not found, found[0]
