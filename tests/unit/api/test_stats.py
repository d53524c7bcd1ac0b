from tests.kit.serving import Broker, topic_path


async def test_figures_of_a_topic(broker: Broker) -> None:
    target = topic_path("t", "stats")
    empty = (await broker.call("GET", target)).json
    assert (empty["first"], empty["last"], empty["messages"]["value"]) == (None, None, 0)
    await broker.call("POST", topic_path("t", "publish"), b"hello", {"Content-Type": "text/plain"})
    told = (await broker.call("GET", target)).json
    assert (told["namespace"], told["topic"], told["generation"]) == ("default", "t", 1)
    assert told["first"] == told["last"] != None  # noqa: E711 - Both are values, and equal.
    assert told["messages"]["value"] == told["published"] == 1
    assert (await broker.call("GET", topic_path("no", "stats"))).status == 404


async def test_a_range_of_a_topic(broker: Broker) -> None:
    target, text = topic_path("t", "range"), {"Content-Type": "text/plain"}
    for _ in range(5):
        await broker.call("POST", topic_path("t", "publish"), b"m", text)
    whole = (await broker.call("GET", target)).json
    assert (whole["messages"], whole["bytes"], whole["lost"]) == (5, 5, 0)
    assert whole["after"] == whole["earliest"] < whole["latest"] == whole["through"]
    some = (await broker.call("GET", f"{target}?messages=2&parts=2")).json
    assert (some["messages"], len(some["ends"]), some["ends"][-1]) == (2, 2, some["through"])
    behind = f"{target}?after={some['through'].upper()}&through={whole['latest']}"
    assert (await broker.call("GET", behind)).json["messages"] == 3
    for wrong in ("after=12", "through=", "messages=0", "bytes=x", "parts=0", "parts=101"):
        assert (await broker.call("GET", f"{target}?{wrong}")).status == 400
    assert (await broker.call("GET", topic_path("no", "range"))).status == 404


async def test_the_lag_behind_an_id(broker: Broker) -> None:
    lag, text = topic_path("t", "lag"), {"Content-Type": "text/plain"}
    start = bytes(20).hex()
    assert (await broker.call("GET", f"{lag}?after={start}")).json["messages"] == 0
    for _ in range(3):
        await broker.call("POST", topic_path("t", "publish"), b"m", text)
    first = (await broker.call("GET", topic_path("t", "stats"))).json["first"]["id"]
    assert (await broker.call("GET", f"{lag}?after={start}")).json["messages"] == 3
    told = (await broker.call("GET", f"{lag}?after={first.upper()}")).json
    assert told == {"after": first, "messages": 2}
    for wrong in ("", "?after=", "?after=12", "?after=xx"):
        assert (await broker.call("GET", lag + wrong)).status == 400
    assert (await broker.call("GET", topic_path("no", f"lag?after={start}"))).status == 404
