"""The commands and programs in the README and in docs/ work.

Every line that begins with ``$`` in a console block runs in a shell, in an empty folder, with the project's command on
the path. A test's broker stands in for the page's broker. Every Python block runs as a program. A program that follows
a topic for ever is stopped after its first line of output.

Commands and programs are forks of one process (``tests.kit.forked``), so that each need not import the packages again.
Programs that use Spark run here only at night; each starts its own Spark. By day tests/integration/spark runs them.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client import SyncClient, TopicExists
from broker.testing.broker_process import BrokerProcess
from tests.kit.forked import Forked
from tests.kit.pages import ROOT, at_port, blocks, named, spark_programs

DEADLINE_S = 120

ENDLESS = {"README.md"}
"""The page whose program follows a topic for ever."""

TRANSACTIONS_ELSEWHERE = "docs/guides/write-pointers.md"
"""The page whose programs need a node that does not run the transactions itself."""

TESTS = {"docs/guides/testing.md"}
"""Pages whose program is a test; ``test_testing_guide`` runs it."""

# Commands that other tests run, and these tests.
FIRST = "tests/docs/test_first_contact.py"
ELSEWHERE = {
    "make demo": "test_the_demonstration_runs_and_prints_three_commands_that_work",
    "make pipeline": "test_the_pipeline_runs",
    "python -m examples.rowlog": "tests/docs/test_examples.py",
    "python -m examples.streams word_count": "tests/integration/spark/test_stream_examples.py",
    "make cluster": "tests/integration/test_local_cluster.py",
    "make serve": "test_make_serve_runs_until_it_is_stopped",
    "make test": "the command that runs this test",
    "make wheel": FIRST,
    "python3 -m venv elsewhere": FIRST,
    "elsewhere/bin/pip install 'dist/tms_broker-0.1.0-py3-none-any.whl[server]'": FIRST,
    "elsewhere/bin/broker --version": FIRST,
    ". .venv/bin/activate": FIRST,
}


def commands(block: str) -> list[str]:
    """Return the commands of a console block; a backslash continues one."""
    joined = block.replace("\\\n", " ")
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("docs") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def forked():
    with Forked() as forked:
        yield forked


@pytest.fixture
def environment(broker, forked, tmp_path):
    path = os.pathsep.join([str(forked.folder), str(Path(sys.executable).parent)])
    own = {"BROKER_URL": broker.url, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}", **own}


@pytest.fixture
def greetings(broker):
    """Create the topic of the README's programs, unless the README's commands have created it."""
    with SyncClient(broker.url) as client, contextlib.suppress(TopicExists):
        client.create_topic("demo/greetings")


def check_success(name: str, command: list, folder: Path, environment: dict[str, str]) -> None:
    """Run a command, and check that it exits with 0."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{name}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(("page", "block"), blocks("console"), ids=named(blocks("console")))
def test_commands_succeed(page, block, broker, environment, tmp_path):
    found = commands(block)
    assert found, f"{page}: a console block without a command"
    for command in found:
        if command in ELSEWHERE:
            continue
        script = at_port(command, broker.port).replace(
            "curl ", "curl --fail --silent --show-error "
        )
        shell = ["bash", "-o", "pipefail", "-c", script]
        check_success(f"{page}: {command}", shell, tmp_path, environment)


PROGRAMS = [
    (page, block)
    for page, block in blocks("python")
    if page not in TESTS | ENDLESS | {TRANSACTIONS_ELSEWHERE} and "pyspark" not in block
]


@pytest.mark.parametrize(("page", "block"), PROGRAMS, ids=named(PROGRAMS))
@pytest.mark.usefixtures("greetings")
def test_programs_run(page, block, broker, forked, environment, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(at_port(block, broker.port))
    check_success(page, [forked.folder / "program", program], tmp_path, environment)


def test_programs_with_write_pointers_from_elsewhere_run(forked, environment, tmp_path):
    with BrokerProcess(tmp_path / "data", ["--role", "topics"]) as broker:
        for page, block in blocks("python"):
            if page == TRANSACTIONS_ELSEWHERE:
                program = tmp_path / "program.py"
                program.write_text(at_port(block, broker.port))
                check_success(page, [forked.folder / "program", program], tmp_path, environment)


@pytest.mark.usefixtures("greetings")
def test_a_program_without_an_end_prints_messages(broker, environment, tmp_path):
    (block,) = [block for page, block in blocks("python") if page in ENDLESS]
    program = tmp_path / "program.py"
    program.write_text(at_port(block, broker.port))
    with subprocess.Popen(
        [sys.executable, "-u", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.terminate()
        assert first, f"printed nothing\n{process.communicate(timeout=DEADLINE_S)[1]}"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
@pytest.mark.parametrize(("page", "block"), spark_programs(), ids=named(spark_programs()))
def test_a_program_that_starts_spark_runs(page, block, broker, environment, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(at_port(block, broker.port))
    check_success(page, [sys.executable, program], tmp_path, environment)


def test_the_pages_with_commands_are_found():
    assert {page for page, _ in blocks("console")} >= {"README.md", "docs/reference/http.md"}
    assert {page for page, _ in blocks("python")} >= {"README.md", "docs/guides/transactions.md"}


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", None])
def test_the_demonstration_refuses_an_empty_or_missing_input(tmp_path, content):
    done = run_demonstration(tmp_path, content)
    assert done.returncode != 0
    assert "make demo INPUT=file" in done.stderr


@pytest.mark.slow
def test_the_demonstration_runs_and_prints_three_commands_that_work(tmp_path, environment):
    lines = b"a line\nanother\xff\n\n" * 500 + b"without an end"
    done = run_demonstration(tmp_path, lines, stay="yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every byte is the same" in done.stdout
    assert "after a restart of the broker: 1,501 messages" in done.stdout
    stays = re.search(r"stays up at (\S+) with its data in (\S+); stop it: kill (\d+)", done.stdout)
    assert stays, done.stdout
    url, folder, pid = stays[1], stays[2], int(stays[3])
    ended = os.pidfd_open(pid)
    try:
        published, tailed, newest = [
            subprocess.check_output(["bash", "-c", line], env=environment, timeout=DEADLINE_S)
            for line in done.stdout.replace(".venv/bin/broker", "broker").splitlines()
            if line.startswith("  ")
        ]
    finally:
        os.kill(pid, signal.SIGTERM)
        assert select.select([ended], [], [], DEADLINE_S)[0], f"{url} did not stop"
        os.close(ended)
        shutil.rmtree(folder)
    assert re.fullmatch(rb"[0-9a-f]{40}\n", published), "the id of the published message"
    assert tailed == lines + b"\none more\n"
    assert [row["payload"] for row in json.loads(newest)["messages"]] == [
        "one more",
        "without an end",
        "",
    ]


CHANGES_A_BYTE = """
import runpy
from broker.client import Client

async def poll(*arguments, honest=Client.poll, **named):
    messages = await honest(*arguments, **named)
    messages[7] = messages[7]._replace(payload=messages[7].payload[:-1] + b"?")
    return messages

Client.poll = poll
runpy.run_path("scripts/demo.py", run_name="__main__")
"""


@pytest.mark.slow
def test_the_demonstration_fails_when_one_byte_differs(tmp_path):
    done = run_demonstration(tmp_path, b"a line\n" * 20, "-c", CHANGES_A_BYTE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "differs from the input at line 8 (20 lines went in, 20 came back)" in done.stderr


def run_demonstration(
    folder: Path, content: bytes | None, *program: str, stay: str = ""
) -> subprocess.CompletedProcess[str]:
    source = folder / "input.log"
    if content is not None:
        source.write_bytes(content)
    return subprocess.run(
        [sys.executable, *(program or ("scripts/demo.py",))],
        cwd=ROOT,
        env={**os.environ, "INPUT": str(source), "STAY": stay},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.nightly
def test_the_pipeline_runs():
    done = subprocess.run(
        [sys.executable, "-m", "scripts.pipeline"],
        cwd=ROOT,
        env={**os.environ, "WINDOWS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both jobs counted the same" in done.stdout


@pytest.mark.slow
def test_make_serve_runs_until_it_is_stopped(tmp_path):
    with subprocess.Popen(
        ["make", "--no-print-directory", "serve", f"ARGS=--port 0 --data-dir {tmp_path}/data"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("broker ready at ") for line in lines)
        os.killpg(process.pid, 15)
        process.wait(DEADLINE_S)
