from typing import Any

import pytest

from chaos.links import Link, Links, links_of, proxies_of
from chaos.toxiproxy import Toxic

NODES = ["broker-1", "broker-2", "broker-3"]
ALL = links_of(NODES, ["zookeeper-1"], ["thrift-1", "thrift-2"])


class Recorded:
    """Records the requests to Toxiproxy."""

    def __init__(self) -> None:
        self.toxics_of: dict[str, set[str]] = {}
        self.disabled: list[str] = []

    def add(self, proxy: str, toxic: Toxic) -> None:
        self.toxics_of.setdefault(proxy, set()).add(toxic.name)

    def remove(self, proxy: str, toxic: str) -> None:
        self.toxics_of.get(proxy, set()).discard(toxic)

    def enable(self, proxy: str, *, enabled: bool) -> None:
        self.disabled.append(f"{proxy} {enabled}")

    def toxics(self) -> dict[str, list[str]]:
        return {name: sorted(toxics) for name, toxics in self.toxics_of.items()}


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def links(recorded: Recorded) -> Links:
    proxy: Any = recorded
    return Links(proxy, dict.fromkeys(ALL, "127.0.0.1:1"))


def test_there_is_a_link_between_every_pair() -> None:
    kinds = [link.pair for link in ALL]
    counts = {pair: kinds.count(pair) for pair in kinds}
    assert counts == {"client-node": 3, "node-zookeeper": 3, "node-hbase": 6, "node-node": 6}
    assert len(set(ALL)) == len(ALL)


def test_links_are_found_by_kind_and_by_end(links: Links) -> None:
    assert links.of("node-zookeeper", opener="broker-2") == [Link("broker-2", "zookeeper-1")]
    assert len(links.of(accepter="broker-1")) == 3
    assert links.around("broker-1", "client-node") == [Link("client", "broker-1")]
    around = links.around("broker-1", "node-node")
    assert len(around) == 4
    assert all("broker-1" in link for link in around)


async def test_a_cut_is_whole_or_one_way_and_heals(links: Links, recorded: Recorded) -> None:
    one, other = Link("broker-1", "broker-2"), Link("broker-2", "broker-1")
    await links.cut([one])
    await links.cut([other], "up")
    assert await links.spoilt() == {
        one.proxy: ["silence_downstream", "silence_upstream"],
        other.proxy: ["silence_upstream"],
    }
    await links.heal([one, other])
    assert await links.spoilt() == {}


async def test_a_cut_and_a_bandwidth_limit_are_healed_separately(links: Links) -> None:
    link = ALL[0]
    narrow = [Toxic("bandwidth", "upstream", {"rate": 10})]
    await links.cut([link], "up")
    await links.spoil([link], narrow)
    await links.heal([link], "up")
    assert await links.spoilt() == {link.proxy: ["bandwidth_upstream"]}
    await links.mend([link], narrow)
    assert await links.spoilt() == {}


async def test_drop_disables_and_enables_the_proxy(links: Links, recorded: Recorded) -> None:
    link = Link("client", "broker-3")
    await links.drop([link])
    assert recorded.disabled == [f"{link.proxy} False", f"{link.proxy} True"]


def test_a_proxy_leads_to_the_address_of_its_accepter() -> None:
    upstreams = {name: f"127.0.0.1:{number}" for number, name in enumerate([*NODES, "x"])}
    (proxy,) = proxies_of([Link("client", "broker-2")], "127.0.0.1", upstreams, [4711])
    assert proxy == ("client>broker-2", "127.0.0.1:4711", "127.0.0.1:1")
