import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos import given_cluster
from chaos.given_cluster import GivenTarget, HookFailed, Hooks, filled
from chaos.nemeses.pause import Pause
from chaos.target import Ability, Target, Unable

URLS = ["http://10.0.0.1:8080/", "http://10.0.0.2:8080"]


def test_a_hook_gets_the_node() -> None:
    words = filled("ssh {host} 'kill {node} at {url}'", 2, "http://10.0.0.2:8080")
    assert words == ["ssh", "10.0.0.2", "kill 2 at http://10.0.0.2:8080"]


def test_an_ability_needs_a_hook_that_undoes_it() -> None:
    assert GivenTarget(URLS).abilities == set()
    assert GivenTarget(URLS, Hooks(kill="k")).abilities == set()
    assert GivenTarget(URLS, Hooks(kill="k", start="s")).abilities == {Ability.KILL}
    assert GivenTarget(URLS, Hooks(pause="p", resume="r")).abilities == {Ability.PAUSE}


async def test_a_call_without_its_hook_is_refused() -> None:
    target = GivenTarget(URLS)
    assert target.nodes == ("broker-1", "broker-2")
    with pytest.raises(Unable, match="kill"):
        await target.kill("broker-1")
    with pytest.raises(Unable, match="links"):
        _ = target.links


async def test_faults_hit_only_the_topics_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def status(self: Target) -> list[dict[str, Any]]:
        own = ["default/log-0123abcd-0", "default/metadata-0123abcd-0-1", "default/churned-3"]
        owners = ["shop/orders", "default/log-1", "shop/log-0123abcd-0"]
        return [{"view": {"topics": [{"topic": topic} for topic in own + owners]}}]

    monkeypatch.setattr(Target, "status", status)
    found = ["default/churned-3", "default/log-0123abcd-0", "default/metadata-0123abcd-0-1"]
    assert await GivenTarget(URLS).topics() == found


async def test_a_hook_is_run_and_its_failure_is_told(tmp_path: Path) -> None:
    noting = f"{sys.executable} -c 'import sys; open(sys.argv[1], \"a\").write(sys.argv[2])'"
    file = tmp_path / "killed"
    target = GivenTarget(URLS, Hooks(kill=f"{noting} {file} {{node}}", start="false"))
    await target.kill("broker-2")
    assert file.read_text() == "2"
    assert target.is_running("broker-1")
    assert not target.is_running("broker-2")
    with pytest.raises(HookFailed, match="exited with 1"):
        await target.start("broker-2")
    assert not target.is_running("broker-2")


async def test_a_hook_without_its_program_fails() -> None:
    with pytest.raises(HookFailed, match="no-such-program"):
        await GivenTarget(URLS, Hooks(kill="no-such-program {node}", start="s")).kill("broker-1")


async def test_a_killed_node_is_started_and_not_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(given_cluster, "READY_S", 0.0)
    file = tmp_path / "did"
    verbs = ("kill", "start", "pause", "resume")
    hooks = Hooks(**{verb: f"sh -c 'echo {verb} >> {file}'" for verb in verbs})
    target = GivenTarget(URLS, hooks)
    await target.pause("broker-1")
    await target.kill("broker-1")
    with pytest.raises(TimeoutError, match="broker-1 is not ready"):
        await target.mend()
    assert file.read_text().split() == ["pause", "kill", "start"]


async def test_a_node_whose_hook_fails_does_not_keep_the_others_paused(tmp_path: Path) -> None:
    file = tmp_path / "did"
    resume = f"sh -c 'test {{node}} = 2 && echo {{node}} >> {file}'"
    target = GivenTarget(URLS, Hooks(pause="true", resume=resume))
    for node in target.nodes:
        await target.pause(node)
    with pytest.raises(HookFailed, match="exited with 1"):
        await target.mend()
    assert file.read_text() == "2\n"


async def test_nodes_can_be_paused_without_a_hook_that_kills(tmp_path: Path) -> None:
    file = tmp_path / "did"
    hooks = [f"sh -c 'echo {verb} {{node}} >> {file}'" for verb in ("pause", "resume")]
    target = GivenTarget(URLS, Hooks(pause=hooks[0], resume=hooks[1]), session_s=0.01)
    nemesis = Pause()
    assert nemesis.needs <= target.abilities
    assert await nemesis.act(target, random.Random(1)) is not None
    words = file.read_text().split()
    assert words[::2] == ["pause", "resume"]
    assert words[1] == words[3]


async def test_a_hook_may_leave_a_process_that_keeps_its_output_open(tmp_path: Path) -> None:
    """A hook that starts a node does that. The hook ends when its own process ends."""
    file = tmp_path / "pid"
    starts = f"sh -c 'tail -f /dev/null & echo $! > {file}'"
    target = GivenTarget(URLS, Hooks(kill=starts, start="true"))
    async with asyncio.timeout(30):
        await target.kill("broker-1")
    os.kill(int(file.read_text()), signal.SIGKILL)


async def test_a_hook_that_ends_when_its_time_is_over_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ended:
        """A process whose end is noticed after the time is over."""

        was_killed = asyncio.Event()

        async def wait(self) -> None:
            await self.was_killed.wait()

        def kill(self) -> None:
            self.was_killed.set()
            raise ProcessLookupError

    async def launched(*_: object, **__: object) -> Ended:
        return Ended()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", launched)
    monkeypatch.setattr(given_cluster, "HOOK_S", 0.0)
    with pytest.raises(HookFailed, match="took longer"):
        await GivenTarget(URLS, Hooks(kill="k", start="s")).kill("broker-1")
