import asyncio
import signal
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from broker.local.servers import ServerMissing
from chaos import commands
from chaos.cases import commands as cases
from chaos.cli import cli
from chaos.nemeses import NEMESES
from chaos.target import Ability, Target


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    refused = CliRunner().invoke(cli, ["run", "--nemesis", "kil"])
    assert refused.exit_code == 2
    assert "there is no nemesis 'kil'; there are mix, kill" in refused.stderr
    refused = CliRunner().invoke(cli, ["run", "--workload", "logs"])
    assert refused.exit_code == 2
    assert "there is no workload 'logs'; there are log" in refused.stderr
    refused = CliRunner().invoke(cli, ["run", "--workload", "transactions,own-transactions"])
    assert refused.exit_code == 2
    assert "run transactions and own-transactions in separate runs" in refused.stderr
    for other in (["--standalone"], ["--target", "http://h"]):
        refused = CliRunner().invoke(cli, ["run", "--workload", "log,rowlog", *other])
        assert refused.exit_code == 2
        assert "rowlog uses HBase and ZooKeeper directly" in refused.stderr.replace("\n", " ")
    refused = CliRunner().invoke(cli, ["run", "--nemesis", "kill,pause", "--workload", "logs"])
    assert "there is no workload 'logs'" in refused.stderr, "the nemeses are taken"
    refused = CliRunner().invoke(cli, ["run", "--target", "http://h", "--kill-cmd", "sh -c '"])
    assert refused.exit_code == 2
    assert "No closing quotation" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--standalone"], "--standalone is for a cluster that the run starts"),
        (["--mutant", "", "--nodes", "5"], "--nodes is for"),
        (["--nodes", "3"], "--nodes is for"),
        (["--hbase", "distributed"], "--hbase is for"),
        (["--kill-cmd", "k"], "--kill-cmd has no effect without --start-cmd"),
        (["--start-cmd", "s"], "--start-cmd has no effect without --kill-cmd"),
        (["--stop-cmd", "k", "--start-cmd", "s"], "has no effect without --kill-cmd"),
        (["--pause-cmd", "p"], "--pause-cmd has no effect without --resume-cmd"),
        (["--resume-cmd", "r"], "--resume-cmd has no effect without --pause-cmd"),
    ],
)
def test_options_that_a_given_cluster_would_ignore_are_refused(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A command that is not refused for its options is refused for its folder.
    monkeypatch.setenv("CHAOS_NAMESPACE", "1")
    (tmp_path / "verdict.json").touch()
    given = ["run", "--target", "http://h", "--dir", str(tmp_path), *words]
    refused = CliRunner().invoke(cli, given)
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kill-cmd", "k", "--start-cmd", "s"], "--kill-cmd is for a cluster that runs already"),
        (["--session-s", "4"], "--session-s is for a cluster that runs already"),
        (["--standalone", "--nodes", "3"], "--nodes is for a cluster: no --standalone"),
        (["--standalone", "--hbase", "one-jvm"], "--hbase is for a cluster: no --standalone"),
        (["--standalone", "--pause-cmd", "p"], "--pause-cmd is for a cluster: no --standalone"),
    ],
)
def test_options_that_a_new_cluster_or_broker_would_ignore_are_refused(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHAOS_NAMESPACE", "1")
    (tmp_path / "verdict.json").touch()
    refused = CliRunner().invoke(cli, ["run", "--dir", str(tmp_path), *words])
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.stderr


def test_a_run_without_an_address_or_into_the_folder_of_another_run_is_refused(
    tmp_path: Path,
) -> None:
    refused = CliRunner().invoke(cli, ["run", "--target", " , ", "--dir", str(tmp_path)])
    assert (refused.exit_code, "it has no address" in refused.stderr) == (2, True)
    (tmp_path / "verdict.json").touch()
    refused = CliRunner().invoke(cli, ["run", "--target", "http://h", "--dir", str(tmp_path)])
    assert (refused.exit_code, "holds a run already" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workload", ""], "name a workload"),
        (["--minutes", "nan"], "nan is no finite number"),
        (["--minutes", "inf"], "inf is no finite number"),
        (["--healing", "nan"], "nan is no finite number"),
        (["--target", "http://h", "--session-s", "0"], "0.0 is not in the range"),
        (["--target", "h:8080"], "must look like http://host:port"),
        (["--target", "http://h:99999"], "Port out of range"),
        (["--target", "http://h,http://u:p@h"], "no user and password"),
        (["--dir", "/dev/null/run"], "/dev/null/run: Not a directory"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_without_a_traceback(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "ChaosCluster", Unstartable)
    refused = CliRunner().invoke(cli, ["run", *words])
    told = " ".join(refused.stderr.split())
    assert (refused.exit_code, says in told, "Traceback" in told) == (2, True, False), told


def test_a_folder_that_can_not_be_made_is_refused_before_a_case_is_played() -> None:
    refused = CliRunner().invoke(cli, ["case", "bounce-back", "--dir", "/dev/null/cases"])
    assert (refused.exit_code, "Traceback" in refused.stderr) == (2, False)
    assert "/dev/null/cases: Not a directory" in refused.stderr


@pytest.mark.parametrize("text", ["[]", "null", '{"details": 1}', '{"details": [1]}', "{", "\xff"])
def test_a_damaged_verdict_is_no_error_of_the_verifier(text: str, tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_bytes(text.encode("latin-1"))
    ended = CliRunner().invoke(cli, ["sum", str(tmp_path)])
    assert (ended.exit_code, "Traceback" in ended.stderr) == (2, False)
    assert "is not a verdict" in ended.stderr


class Unstartable:
    """A cluster whose servers are missing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> None:
        raise ServerMissing("no HBase here")

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("words", "module"),
    [(["run"], commands), (["run", "--standalone"], commands), (["case", "zombie-leader"], cases)],
)
def test_a_cluster_that_does_not_start_is_no_violation(
    words: list[str], module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHAOS_NAMESPACE", "1")
    for name in ("ChaosCluster", "Standalone"):
        monkeypatch.setattr(module, name, Unstartable, raising=False)
    ended = CliRunner().invoke(cli, [*words, "--dir", str(tmp_path)])
    assert (ended.exit_code, "did not start: no HBase here" in ended.stderr) == (2, True)


@pytest.mark.parametrize("unshare", ["#!/bin/sh\nexit 1\n", None])
def test_a_standalone_broker_starts_without_a_namespace_if_there_is_none(
    unshare: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def replaced(*_: object) -> None:
        raise OSError("this process was replaced")

    if unshare is not None:
        (tmp_path / "unshare").write_text(unshare)
        (tmp_path / "unshare").chmod(0o755)
    monkeypatch.delenv("CHAOS_NAMESPACE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.execvp", replaced)
    monkeypatch.setattr(commands, "Standalone", Unstartable)
    ended = CliRunner().invoke(cli, ["run", "--standalone", "--dir", str(tmp_path / "run")])
    assert (ended.exit_code, "did not start: no HBase here" in ended.stderr) == (2, True)


def test_an_error_of_the_verifier_is_no_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Faulty(Unstartable):
        def __enter__(self) -> None:
            raise ZeroDivisionError

    monkeypatch.setenv("CHAOS_NAMESPACE", "1")
    monkeypatch.setattr(commands, "Standalone", Faulty)
    ended = CliRunner().invoke(cli, ["run", "--standalone", "--dir", str(tmp_path)])
    assert (ended.exit_code, "ZeroDivisionError" in ended.stderr) == (2, True)


def test_an_interrupted_start_is_no_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted(Unstartable):
        def __enter__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setenv("CHAOS_NAMESPACE", "1")
    monkeypatch.setattr(commands, "Standalone", Interrupted)
    ended = CliRunner().invoke(cli, ["run", "--standalone", "--dir", str(tmp_path)])
    assert (ended.exit_code, "there is no verdict" in ended.stderr) == (130, True)


def test_a_run_that_is_interrupted_twice_leaves_no_node_paused_or_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stuck:
        """A run that goes on after the first Ctrl-C."""

        def __init__(self, target: Target, *_: object) -> None:
            self.target = target
            self.interrupted = asyncio.Event()

        async def run(self) -> None:
            await self.target.pause("broker-1")
            await self.target.kill("broker-2")
            signal.raise_signal(signal.SIGINT)
            await self.interrupted.wait()
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    monkeypatch.setattr(commands, "Run", Stuck)
    ended, did = run_with_hooks(tmp_path)
    assert ended.exit_code == 130, ended.output
    assert did == ["pause 1", "kill 2", "resume 1", "start 2"]


def run_with_hooks(folder: Path) -> tuple[Result, list[str]]:
    """Run on a given cluster; return the result, and the calls of the hooks."""
    did = folder / "did"
    hooks = [
        word
        for verb in ("kill", "start", "pause", "resume")
        for word in (f"--{verb}-cmd", f"sh -c 'echo {verb} {{node}} >> {did}'")
    ]
    words = ["run", "--target", "http://h:1,http://h:2", "--dir", str(folder / "run"), *hooks]
    return CliRunner().invoke(cli, words), did.read_text().splitlines()


def test_a_run_that_fails_leaves_no_node_paused_or_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Failing:
        def __init__(self, target: Target, *_: object) -> None:
            self.target = target

        async def run(self) -> None:
            await self.target.pause("broker-1")
            await self.target.kill("broker-2")
            raise KeyError("no such key")

    monkeypatch.setattr(commands, "Run", Failing)
    ended, did = run_with_hooks(tmp_path)
    assert (ended.exit_code, "no such key" in ended.stderr) == (2, True)
    assert did == ["pause 1", "kill 2", "resume 1", "start 2"]


def test_a_damaged_verdict_is_named_and_is_no_violation(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text("{}")
    ended = CliRunner().invoke(cli, ["sum", str(tmp_path)])
    assert (ended.exit_code, "verdict.json is not a verdict" in ended.stderr) == (2, True)


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_explains_itself(command: str) -> None:
    shown = CliRunner().invoke(cli, [command, "--help"])
    assert shown.exit_code == 0
    assert f"  python -m chaos {command}" in shown.stdout
    assert f"  {command}" in CliRunner().invoke(cli, ["--help"]).stdout


def test_the_nemeses_are_listed_in_order() -> None:
    lines = CliRunner().invoke(cli, ["nemeses"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(NEMESES)
    texts = {line.partition(" ")[2].strip() for line in lines}
    assert len(texts) == len(lines), "each has a text of its own"


@pytest.mark.parametrize("name", NEMESES)
def test_a_nemesis_has_its_registered_name_and_known_needs(name: str) -> None:
    nemesis = NEMESES[name]()
    assert nemesis.name == name
    assert nemesis.needs <= set(Ability)
    assert type(nemesis).__doc__
