from tests.kit.serving import Broker, Http, topic_path

LEADER = topic_path("t", "leader")


async def test_a_standalone_node_leads_every_topic(http: Http) -> None:
    before = await http("GET", LEADER)
    assert before.json == {"node": None, "url": http.url, "epoch": None}
    await http("POST", topic_path("t", "publish"), b"a", {"Content-Type": "text/plain"})
    assert (await http("GET", LEADER)).json == {"node": None, "url": http.url, "epoch": 1}
    assert "Broker-Leader" not in before.headers


async def test_an_unknown_topic_has_no_leader(broker: Broker) -> None:
    assert (await broker.call("GET", topic_path("no", "leader"))).status == 404
