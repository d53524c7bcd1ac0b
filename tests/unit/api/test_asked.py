"""What a request asks for: the type of its body, and how a large body is decoded."""

import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest

from broker.api import asked
from broker.api.asked import AT_ONCE_BYTES_MAX, JSON_BYTES_MAX, body_type, bytes_max
from broker.api.messages import publish
from broker.api.messages.publish import FEW_MAX
from broker.errors import BadRequest, BodyTooLarge
from broker.http.budget import Bounds, BudgetKind, Budgets, Usage
from broker.http.request import Request
from broker.long_work import COUNTED_AT_ONCE, heavy
from broker.operations.media_types import AVRO, AVRO_JSON, JSON, TEXT
from broker.wire import Take, avro
from tests.kit.serving import Broker, eventually, listening, topic_path


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ("avro/binary", AVRO),
        ("application/json", JSON),
        ("avro/json", AVRO_JSON),
        ("Avro/JSON; charset=utf-8", AVRO_JSON),
        ("Application/JSON; charset=utf-8", JSON),
        ("text/plain", TEXT),
        ("text/plain;charset=latin-1", TEXT),
        ("application/octet-stream", TEXT),
    ],
)
def test_known_types(sent: str, kind: str) -> None:
    assert body_type({"Content-Type": sent}, [TEXT]) == kind


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "avro/binary; charset=utf-8",
        "Avro/Binary",
        " avro/binary",
        "application/avro",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ],
)
def test_other_types_are_refused_with_the_header_to_add(sent: str) -> None:
    with pytest.raises(BadRequest, match='Add the header "Content-Type: avro/binary"'):
        body_type({"Content-Type": sent}, [TEXT])


def test_a_raw_body_can_only_be_published() -> None:
    with pytest.raises(BadRequest):
        body_type({"Content-Type": "text/plain"}, [])
    with pytest.raises(BadRequest, match="not ''"):
        body_type({}, [])


@pytest.mark.parametrize(
    ("sent", "most", "bound"),
    [
        ("avro/binary", None, None),
        ("text/plain", None, None),
        ("", 7, 7),
        ("application/json", None, JSON_BYTES_MAX),
        ("Avro/JSON; charset=utf-8", None, JSON_BYTES_MAX),
        ("application/json", 2 * JSON_BYTES_MAX, JSON_BYTES_MAX),
        ("application/json", 7, 7),
    ],
)
def test_json_has_its_own_bound(sent: str, most: int | None, bound: int | None) -> None:
    assert bytes_max({"Content-Type": sent}, most) == bound


PUBLISH = topic_path("t", "publish")
SMALL, LARGE = bytes(AT_ONCE_BYTES_MAX), bytes(AT_ONCE_BYTES_MAX + 1)


def request(body: bytes, usage: Usage | None = None) -> Request:
    return Request("POST", PUBLISH, "", {}, body, usage=usage or Usage(None))


def by_thread(_: bytes, *, take: object) -> int:
    del take
    return threading.get_ident()


async def test_a_small_body_is_decoded_at_once_and_a_large_one_in_a_thread() -> None:
    assert await asked.read(request(SMALL), by_thread) == threading.get_ident()
    assert await asked.read(request(LARGE), by_thread) != threading.get_ident()


async def test_a_client_that_goes_ends_the_decoding_of_its_body() -> None:
    counts = threading.Event()
    budgets = Budgets()
    usage = Usage(budgets.account("::1", lambda _: None))

    def endless(_: bytes, *, take: Take) -> None:
        while True:
            counts.set()
            take(COUNTED_AT_ONCE)

    reading = asyncio.create_task(asked.read(request(LARGE, usage), endless))
    assert await asyncio.to_thread(counts.wait, 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 10)
    usage.close()
    assert budgets.used[BudgetKind.ITEMS] == 0


async def test_items_of_a_large_body_are_held_for_its_request() -> None:
    budgets = Budgets({BudgetKind.ITEMS: Bounds(20_000, 30_000, 30_000)})
    usage = Usage(budgets.account("::1", lambda _: None))

    async def read(count: int) -> None:
        body = b"\x02" + avro.encode_long(count) + bytes(count) + b"\0"
        await asked.read(
            request(body, usage), partial(avro.decode_publish_request, messages_max=99_999)
        )

    await read(20_000)
    assert budgets.used[BudgetKind.ITEMS] == 20_000
    usage.close()
    assert budgets.used[BudgetKind.ITEMS] == 0
    with pytest.raises(BodyTooLarge, match="20,000 items"):
        await read(20_001)


@pytest.mark.parametrize("in_a_block", [1, FEW_MAX + 1])
@pytest.mark.parametrize(("count", "in_a_thread"), [(FEW_MAX, False), (FEW_MAX + 1, True)])
async def test_a_few_messages_are_decoded_at_once_however_long(
    monkeypatch: pytest.MonkeyPatch, count: int, in_a_block: int, in_a_thread: bool
) -> None:
    calls: list[str] = []

    async def noted(caller: str, *work: Any) -> Any:
        calls.append(caller)
        return await heavy(caller, *work)

    monkeypatch.setattr(asked, "heavy", noted)
    budgets = Budgets()
    usage = Usage(budgets.account("::1", lambda _: None))
    one = avro.encode_bytes(bytes(100))
    blocks = [min(in_a_block, count - at) for at in range(0, count, in_a_block)]
    body = b"".join([b"\x02", *[avro.encode_long(each) + one * each for each in blocks], b"\0"])
    asking = Request("POST", PUBLISH, "", {"Content-Type": "avro/binary"}, body, usage=usage)
    found, _ = await publish.decoded(asking, raw=False, messages_max=99_999)
    assert found.payloads == [bytes(100)] * count
    assert calls == ["::/64"] * in_a_thread
    assert budgets.used[BudgetKind.ITEMS] == count


@pytest.mark.parametrize(("kind", "copies"), [("application/json", 2), ("text/plain", 1)])
async def test_messages_count_beside_the_body_that_they_were_decoded_from(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: str, copies: int
) -> None:
    held: list[int] = []
    publish = broker.topics.publish

    async def noted(*asked: Any) -> Any:
        held.append(broker.server.budgets.used[BudgetKind.BODY_BYTES])
        return await publish(*asked)

    monkeypatch.setattr(broker.topics, "publish", noted)
    body = json.dumps(["x" * 10_000]).encode()
    async with listening(broker) as http:
        assert (
            await http("POST", topic_path("t", "publish"), body, {"Content-Type": kind})
        ).status == 200
        await eventually(lambda: not broker.server.busy, lambda: broker.server.busy)
    assert held == [copies * len(body)]
    assert broker.server.budgets.used[BudgetKind.BODY_BYTES] == 0
