from tests.kit.serving import Broker


async def test_ping_and_status_answer_as_the_original(broker: Broker) -> None:
    ping = await broker.call("GET", "/ping")
    assert (ping.status, ping.body) == (200, b"OK.\n")
    status = await broker.call("GET", "/v3/system/services/messaging.service/status")
    assert (status.status, status.body) == (200, b'{"status":"OK"}')


async def test_readiness_says_why_not(broker: Broker) -> None:
    assert (await broker.call("GET", "/readyz")).json == {"status": "ready"}
    broker.not_ready = "it is stopping"
    reply = await broker.call("GET", "/readyz")
    assert reply.status == 503
    assert b"it is stopping" in reply.body


async def test_metrics_count_answers_by_route_and_code(broker: Broker) -> None:
    await broker.call("GET", "/v1/namespaces/default/topics/no")
    text = (await broker.call("GET", "/metrics")).body.decode()
    assert 'broker_requests_total{code="topic_not_found",kind="show_topic",node="test"} 1.0' in text
    assert 'kind="create_topic"' in text


async def test_the_root_names_the_product_and_its_interface(broker: Broker) -> None:
    told = (await broker.call("GET", "/")).json
    assert (told["product"], told["version"]) == ("tms-broker", "test")
    assert (await broker.call("GET", told["interface"])).json["openapi"] == "3.1.0"
