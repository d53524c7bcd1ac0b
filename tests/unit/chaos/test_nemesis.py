import asyncio
import random
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pytest

from broker.client import NotFound, TopicNotFound
from broker.client.client_request import ClientRequest
from broker.errors import Unavailable
from broker.local import ProcessKind
from broker.local.servers import ServerFailed
from chaos.links import Link, Links, links_of
from chaos.nemeses import membership
from chaos.nemeses.beneath import RegionMove
from chaos.nemeses.churn import LeaderMoves
from chaos.nemeses.disk import Flipped
from chaos.nemeses.kill import Kill
from chaos.nemeses.membership import MembershipChanges, Twin
from chaos.nemeses.partition import Partition
from chaos.nemeses.wall_clocks import ClockStep, Strobe
from chaos.nemesis import Repeated
from chaos.target import Target

NODES = ["broker-1", "broker-2", "broker-3"]


class Doing(Repeated):
    """Returns or raises the scripted results, one for each ``act``."""

    name = "doing"
    needs: ClassVar[frozenset[Any]] = frozenset()
    rest_s = (0.0, 0.0)

    def __init__(self, *done: object) -> None:
        super().__init__()
        self.script = list(done)
        self.ended = asyncio.Event()
        self.undone = False

    async def act(self, target: Target, chance: random.Random) -> object:
        if not self.script:
            self.ended.set()
            await self.rest(60)
            return None
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def undo(self, target: Target) -> None:
        self.undone = True


async def played(nemesis: Doing) -> dict[str, Any]:
    target = Target(NODES, (), session_s=1)
    await nemesis.begin(target, random.Random(1))
    async with asyncio.timeout(20):
        await nemesis.ended.wait()
        return dict(await nemesis.heal(target))


async def test_a_repeated_fault_counts_its_repetitions() -> None:
    nemesis = Doing("one", None, "two")
    evidence = await played(nemesis)
    assert evidence == {"happened": True, "times": 2, "done": ["one", "two"]}
    assert nemesis.undone


async def test_a_fault_that_only_fails_did_not_happen_and_has_errors() -> None:
    evidence = await played(Doing(ServerFailed("it ended"), None))
    assert evidence["happened"] is False
    assert evidence["errors"] == ["ServerFailed('it ended')"]


class Killable(Target):
    """Records the kills and starts of its processes."""

    def __init__(self) -> None:
        super().__init__(NODES, (), session_s=1)
        self.did: list[str] = []
        self.killed = asyncio.Event()

    alive: ClassVar[list[str]] = ["broker-2"]

    def processes(self, kind: ProcessKind) -> tuple[str, ...]:
        return ("rowlog-1",) if kind is ProcessKind.PROCESSOR else super().processes(kind)

    def is_running(self, name: str) -> bool:
        return name in self.alive

    async def kill(self, name: str) -> None:
        self.did.append(f"kill {name}")
        self.killed.set()

    async def start(self, name: str) -> None:
        self.did.append(f"start {name}")


async def test_only_a_living_node_is_killed_and_it_is_restarted_also_after_the_window() -> None:
    target, nemesis = Killable(), Kill()
    acting = asyncio.create_task(nemesis.act(target, random.Random(1)))
    await target.killed.wait()
    await nemesis.heal(target)
    assert await acting == "broker-2"
    assert target.did == ["kill broker-2", "start broker-2"]


async def test_a_workloads_own_process_is_killed_as_a_node_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Killable, "alive", ["rowlog-1"])
    target, nemesis = Killable(), Kill()
    acting = asyncio.create_task(nemesis.act(target, random.Random(1)))
    await target.killed.wait()
    await nemesis.heal(target)
    assert await acting == "rowlog-1"


class Moving(Target):
    """Has two region servers; only the first has regions."""

    def __init__(self, *running: str) -> None:
        super().__init__(NODES, (), session_s=1)
        self.running = running

    def processes(self, kind: ProcessKind) -> tuple[str, ...]:
        return ("region-1", "region-2") if kind is ProcessKind.REGION_SERVER else ()

    def is_running(self, name: str) -> bool:
        return name in self.running

    async def move_regions(self, region_server: str) -> int:
        return 4 if region_server == "region-1" else 0


async def test_regions_move_if_there_is_another_server_and_an_empty_move_does_not_count() -> None:
    assert await RegionMove().act(Moving("region-1"), random.Random(1)) is None
    target, chance = Moving("region-1", "region-2"), random.Random(1)
    told = [await RegionMove().act(target, chance) for _ in range(20)]
    assert {each["regions"] for each in told if each} == {4}
    assert None in told


class Proxied(Target):
    """Records the toxics of its links."""

    def __init__(self) -> None:
        super().__init__(NODES, (), session_s=1)
        self.toxics_of: dict[str, set[str]] = {}
        proxy: Any = self
        every = links_of(NODES, ["zookeeper-1"], ["thrift-1"], ["rowlog-1"])
        self._links = Links(proxy, dict.fromkeys(every, "127.0.0.1:1"))

    def processes(self, kind: ProcessKind) -> tuple[str, ...]:
        return ("rowlog-1",) if kind is ProcessKind.PROCESSOR else super().processes(kind)

    def add(self, proxy: str, toxic: Any) -> None:
        self.toxics_of.setdefault(proxy, set()).add(toxic.name)

    def remove(self, proxy: str, toxic: str) -> None:
        self.toxics_of[proxy].discard(toxic)

    def toxics(self) -> dict[str, list[str]]:
        return {name: sorted(toxics) for name, toxics in self.toxics_of.items()}


async def test_a_partition_cuts_the_links_of_its_kind_and_heals_them() -> None:
    for seed in range(20):
        target, nemesis = Proxied(), Partition("node-node")
        detail = await nemesis.begin(target, random.Random(seed))
        cut = [Link(*name.split(">")) for name in await target.links.spoilt()]
        assert {link.pair for link in cut} == {"node-node"}
        assert detail["node"] == "all" or all(detail["node"] in link for link in cut)
        evidence = await nemesis.heal(target)
        assert evidence["happened"]
        assert sorted(evidence["links"]) == sorted(link.proxy for link in cut)
        assert await target.links.spoilt() == {}


async def test_a_rowlog_processor_is_cut_off_alone() -> None:
    assert "rowlog-1" not in Proxied().ends_of("node-node")
    for pair in ("node-zookeeper", "node-hbase"):
        details = [
            await Partition(pair).begin(Proxied(), random.Random(seed))  # type: ignore[arg-type]
            for seed in range(20)
        ]
        assert "rowlog-1" in [each["node"] for each in details]


async def test_a_partition_that_was_healed_by_another_is_no_evidence() -> None:
    target, nemesis = Proxied(), Partition()
    await nemesis.begin(target, random.Random(1))
    target.toxics_of.clear()
    target.toxics_of.update({link.proxy: set() for link in target.links.of()})
    assert not (await nemesis.heal(target))["happened"]


class Pinned(Target):
    """Has pins of topics, one of which does not exist any more."""

    def __init__(self) -> None:
        super().__init__(NODES, (), session_s=1)
        self.pins: dict[str, str] = {}

    async def topics(self) -> list[str]:
        return ["default/deleted", "default/there"]

    async def pin(self, topic: str, node: str | None) -> None:
        if topic == "default/deleted":
            raise TopicNotFound("there is no such topic")
        if node is None:
            del self.pins[topic]
        else:
            self.pins[topic] = node


async def test_pins_are_removed_also_if_another_topic_was_deleted() -> None:
    target, nemesis, chance = Pinned(), LeaderMoves(), random.Random(1)
    for _ in range(20):
        with suppress(TopicNotFound):
            await nemesis.act(target, chance)
    assert target.pins
    await nemesis.undo(target)
    assert target.pins == {}


async def test_a_pin_that_stays_does_not_keep_the_others() -> None:
    class Failing(Pinned):
        fails = True

        async def topics(self) -> list[str]:
            return ["default/a", "default/b", "default/c"]

        async def pin(self, topic: str, node: str | None) -> None:
            if self.fails and node is None and topic == "default/a":
                raise Unavailable("no answer")
            await super().pin(topic, node)

    target, nemesis, chance = Failing(), LeaderMoves(), random.Random(1)
    while len(target.pins) < 3:
        await nemesis.act(target, chance)
    with pytest.raises(Unavailable):
        await nemesis.undo(target)
    assert set(target.pins) == {"default/a"}
    target.fails = False
    await nemesis.undo(target)
    assert target.pins == {}


class Joinable(Target):
    """Has a spare node, and a node that can be drained; without ``is_live`` that node has no address."""

    def __init__(self) -> None:
        super().__init__(["broker-1"], ["http://broker-1"], session_s=1)
        self.is_live = True
        self.drained: set[str] = set()
        self.running: set[str] = set()

    async def status(self) -> list[dict[str, Any]]:
        return [{"node": 7, "url": "http://broker-1", "view": {}}]

    def client(self, **_: Any) -> Any:
        return nullcontext(self)

    async def ask(self, request: ClientRequest) -> None:
        *_, node, verb = unquote(request.path).rsplit("/", 2)
        known = {"7": "7"} | ({"http://broker-1": "7"} if self.is_live else {})
        if node not in known:
            raise NotFound(f"there is no live node {node}")
        (self.drained.add if verb == "drain" else self.drained.discard)(known[node])

    async def start_spare(self, environment: Mapping[str, str]) -> str:
        self.running.add("spare")
        return "spare"

    async def stop(self, name: str) -> int | None:
        self.running.remove(name)
        return 0


async def test_a_drained_node_that_has_ended_is_undrained_and_the_spare_one_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "STAYS_S", (0.0, 0.0))
    target, nemesis, chance = Joinable(), MembershipChanges(), random.Random(1)
    while not target.drained:
        await nemesis.act(target, chance)
    assert target.running
    target.is_live = False
    await nemesis.undo(target)
    assert (target.drained, target.running) == (set(), set())


class Doubled(Joinable):
    """Starts a second node with the instance id of ``broker-1``, which tells its incarnation to clients.

    Args:
        refuses: The second node does not start.
        looks: How often the first node answers until it ends; None: it goes on.
    """

    def __init__(self, *, refuses: bool = False, looks: int | None = None) -> None:
        super().__init__()
        self.refuses = refuses
        self.looks = looks

    async def status(self) -> list[dict[str, Any]]:
        view = {"incarnation": "first"}
        return [{"node": 7, "url": "http://broker-1", "view": view}]

    async def ask(self, request: ClientRequest) -> dict[str, Any]:
        assert request.path == "/v1/cluster/node"
        if self.looks == 0:
            raise Unavailable("no answer")
        self.looks = None if self.looks is None else self.looks - 1
        return {"incarnation": "first"}

    def is_running(self, name: str) -> bool:
        return name in self.running

    async def start_spare(self, environment: Mapping[str, str]) -> str:
        assert environment == {"BROKER_CLUSTER__INSTANCE_ID": "7"}
        if self.refuses:
            raise ServerFailed("the instance id is taken")
        return await super().start_spare(environment)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (Doubled(refuses=True), ({"instance": 7, "refused": True}, None)),
        (Doubled(looks=1), ({"instance": 7, "refused": False}, None)),
        (Doubled(), ({"instance": 7, "refused": False}, [7])),
    ],
)
async def test_a_twin_is_told_only_if_the_owner_of_the_instance_id_goes_on(
    target: Doubled, told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "GOES_ON_S", 0.05 if target.looks is None else 60.0)
    monkeypatch.setattr(membership, "EVERY_S", 0.01)
    nemesis = Twin()
    done = await nemesis.act(target, random.Random(1))
    assert (done, (await nemesis.heal(target)).get("twins")) == told
    assert target.running == set()


class Timed(Target):
    """Has settable clocks."""

    def __init__(self) -> None:
        super().__init__(NODES, (), session_s=1)
        self.offsets_s = dict.fromkeys(NODES, 0.0)

    @property
    def clocks(self) -> Any:
        return self

    def set(self, node: str, offset_s: float) -> None:
        self.offsets_s[node] = offset_s

    def offset_s(self, node: str) -> float:
        return self.offsets_s[node]


async def test_clocks_are_wrong_and_then_right() -> None:
    target, step = Timed(), ClockStep("clock-back", -10.0)
    detail = await step.begin(target, random.Random(1))
    assert target.offsets_s[detail["node"]] == -10
    assert (await step.heal(target))["happened"]
    strobe = Strobe()
    assert (await strobe.act(target, random.Random(1)))["offset_s"] in target.offsets_s.values()
    await strobe.undo(target)
    assert set(target.offsets_s.values()) == {0}


def test_a_bit_is_flipped_and_flipped_back(tmp_path: Path) -> None:
    file = tmp_path / "000001.log"
    file.write_bytes(bytes(100))
    flipped = Flipped(file, 42, 3)
    flipped.flip()
    assert file.read_bytes()[42] == 8
    flipped.flip()
    assert file.read_bytes() == bytes(100)
