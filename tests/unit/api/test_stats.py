from broker.testing.serving import Broker, topic_path


async def test_figures_of_a_topic(broker: Broker) -> None:
    target = topic_path("t", "stats")
    empty = (await broker.call("GET", target)).json
    assert (empty["first"], empty["last"], empty["messages"]["value"]) == (None, None, 0)
    await broker.call("POST", topic_path("t", "publish"), b"hello", {"Content-Type": "text/plain"})
    told = (await broker.call("GET", target)).json
    assert (told["namespace"], told["topic"], told["generation"]) == ("default", "t", 1)
    assert told["first"] == told["last"] != None  # noqa: E711 - Both are values, and equal.
    assert told["messages"]["value"] == 1
    assert (await broker.call("GET", topic_path("no", "stats"))).status == 404
