from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import Broker, Http, topic_path

LEADER = topic_path("t", "leader")


async def test_a_standalone_node_leads_every_topic(http: Http) -> None:
    before = await http("GET", LEADER)
    assert before.json == {"node": 0, "url": http.url, "epoch": None}
    await http("POST", topic_path("t", "publish"), b"a", {"Content-Type": "text/plain"})
    assert (await http("GET", LEADER)).json == {"node": 0, "url": http.url, "epoch": 1}
    assert "Broker-Leader" not in before.headers


@on_cluster(nodes=2)
async def test_every_node_of_a_cluster_names_the_leader(cluster: HttpCluster) -> None:
    for epoch, leader in enumerate((0, 1), start=1):
        await cluster.lead(leader)
        await cluster.publish(0, "a")
        for node in (0, 1):
            told = (await cluster(node, "GET", LEADER)).json
            assert told == {"node": leader, "url": cluster.url(leader), "epoch": epoch}


async def test_an_unknown_topic_has_no_leader(broker: Broker) -> None:
    assert (await broker.call("GET", topic_path("no", "leader"))).status == 404
