"""The case of a doubled instance id, on a cluster that lets the second node start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.local.servers import ServerFailed
from chaos.cases import CASES
from chaos.cases import failovers as cases
from chaos.cases.harness import LeaderSighting, Scene
from chaos.target import Target, Unable


class Lenient(Target):
    """A cluster with a spare node, which may start beside the owner of its instance id.

    Args:
        starts: The spare node starts while the owner lives.
        stops: The owner ends when it is cut off and the spare node has its instance id.
    """

    def __init__(self, *, starts: bool, stops: bool) -> None:
        super().__init__(["broker-1"], ["http://broker-1"], session_s=1)
        self.starts = starts
        self.stops = stops
        self.is_cut = False
        self.running = {"broker-1"}

    def own_view(self, node: str) -> Mapping[str, Any]:
        return {"node": 7}

    def state(self) -> str:
        return ""

    def is_running(self, name: str) -> bool:
        return name in self.running

    async def start_spare(self, environment: Mapping[str, str]) -> str:
        if "spare" in self.running:
            raise Unable("spare runs already")
        if not (self.is_cut or self.starts):
            raise ServerFailed("the instance id is taken")
        self.running.add("spare")
        if self.is_cut and self.stops:
            self.running.remove("broker-1")
        return "spare"

    async def stop(self, name: str) -> int | None:
        self.running.remove(name)
        return 0

    @property
    def links(self) -> Any:
        return self

    def of(self, pair: str, *, opener: str) -> Sequence[str]:
        return [f"{opener} {pair}"]

    async def cut(self, links: Sequence[str]) -> None:
        self.is_cut = True

    async def heal(self, links: Sequence[str]) -> None:
        self.is_cut = False


class Led(Scene):
    """A scene whose only topic is led by ``broker-1``."""

    async def topic(self, **_: Any) -> Any:
        return None

    async def led(self, topic: Any) -> LeaderSighting:
        return LeaderSighting("broker-1", 1)

    async def until_acknowledged(self, *_: Any) -> LeaderSighting:
        return LeaderSighting("broker-1", 2)

    async def finish(self, *topics: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("starts", "stops", "violations"),
    [(False, True, 0), (True, True, 1), (False, False, 1), (True, False, 2)],
)
async def test_each_doubled_instance_id_is_a_violation(
    starts: bool, stops: bool, violations: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cases, "LOOKS_S", 0.0)
    cluster = Lenient(starts=starts, stops=stops)
    scene = Led(tmp_path, "", cluster)  # type: ignore[arg-type]
    await CASES["twin-instance"].play(scene)
    assert [one.name for one in scene.violations] == ["same_instance_id"] * violations
    assert list(scene.faults.values()) == [True]
    assert "spare" not in cluster.running
