"""Arrow batches have the ids and payloads of a poll; bulk reads: what they answer, what they refuse, and how one that fails shows it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.api.messages import arrow as bulk
from broker.api.messages.arrow import ArrowMaker, ArrowStream
from broker.client import Client
from broker.errors import NotInstalled, Unavailable
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, TopicId, log_key
from broker.operations.media_types import ARROW
from broker.operations.parameters import BLOCKED_BY_HEADER
from broker.storage import entry as entries
from broker.storage.entry import Entry, Shared, entries_of
from broker.storage.page_entries import joined
from broker.topics import streams, topics
from broker.topics.pages import PollPage, Run
from broker.topics.topic_state import TopicState
from broker.wire import attributes
from broker.wire.attributes import Attributes
from broker.wire.messages import PollDecoder
from broker.wire.transaction import encode_transaction
from broker.wire.varint import END
from tests.kit.bench import settle
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import Broker, Http, topic_path

MAKER = ArrowMaker()
SIZES = [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 100_000]


def page_of(runs: Sequence[Run]) -> PollPage:
    return PollPage(list(runs), sum(stop - first for _, first, stop, _ in runs), 0)


def polled(page: PollPage) -> list[tuple[bytes, bytes]]:
    return [message[:2] for message in PollDecoder().feed(b"".join(page.block()) + END)]


def made(stream: ArrowStream, *pages: PollPage) -> pa.Table:
    pieces = [piece for page in pages for piece in stream.batch(page)]
    table = pa.ipc.open_stream(b"".join([*pieces, stream.end()])).read_all()
    table.validate(full=True)
    return table


def rows_of(table: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(*table.select(["id", "value"]).to_pydict().values(), strict=True))


def attributed(table: pa.Table) -> dict[int, Attributes]:
    """Return the keys and headers of the rows that have any."""
    keys = table.column("key").to_pylist()
    headers = table.column("headers").to_pylist(maps_as_pydicts="strict")
    rows = enumerate(zip(keys, headers, strict=True))
    assert {} not in headers  # A row without headers has null.
    return {place: (key, some or {}) for place, (key, some) in rows if (key, some) != (None, None)}


def entry_of(
    sizes: Sequence[int], form: str, *, is_stored: bool = False, encoded: Sequence[bytes] = ()
) -> list[Entry]:
    """Return entries with payloads of these sizes: new, decoded from storage, or joined."""
    ids = [log_key(1000 + place, place) for place in range(len(sizes))]
    payloads = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
    found = entries_of(1, ids, payloads, Shared(is_stored=is_stored), encoded)
    if form == "stored":
        return [entries.decode(entries.encode(entry)) for entry in found]
    return [joined(found)] if form == "joined" else found


SHORT = st.binary(max_size=5) | st.just(bytes(200))
ENCODED = st.builds(
    attributes.encode,
    st.none() | SHORT,
    st.dictionaries(st.text(min_size=1, max_size=5), SHORT, max_size=3),
)


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    found: list[Run] = []
    for _ in range(draw(st.integers(1, 4))):
        size = st.sampled_from(SIZES[:-1]) | st.integers(0, 300)
        sizes = draw(st.lists(size, min_size=1, max_size=12) | st.lists(st.just(5), min_size=1))
        reference = draw(st.sampled_from([None, log_key(5000, 1), log_key(6000, 2)]))
        form = draw(st.sampled_from(["made", "stored", "joined"]))
        encoded = draw(st.just([]) | st.lists(ENCODED, min_size=len(sizes), max_size=len(sizes)))
        for entry in entry_of(sizes, form, is_stored=reference is not None, encoded=encoded):
            first = draw(st.integers(0, entry.count - 1))
            stop = draw(st.integers(first + 1, entry.count))
            found.append((entry, first, stop, reference))
    return found


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_batches_have_the_rows_of_polls(several: list[list[Run]]) -> None:
    pages = [page_of(each) for each in several]
    table = made(MAKER.stream(), *pages)
    assert rows_of(table) == [row for page in pages for row in polled(page)]
    expected, base = {}, 0
    for page in pages:
        expected |= {base + at: attributes.decode(each) for at, each in page.attributes()}
        base += page.count
    assert attributed(table) == expected


def test_keys_and_headers_are_columns() -> None:
    kinds: list[Attributes] = [
        (None, {}),
        (b"k", {}),
        (b"", {"a": b"1", "\N{SNOWMAN}": b"\xff"}),
        (None, {}),
        (None, {"a": b""}),
    ]
    encoded = [attributes.encode(*kind) for kind in kinds]
    page = page_of([(each, 0, 5, None) for each in entry_of([3] * 5, "stored", encoded=encoded)])
    plain = page_of([(each, 0, 5, None) for each in entry_of([3] * 5, "stored")])
    table = made(MAKER.stream(), plain, page, plain)
    assert attributed(table) == {6: kinds[1], 7: kinds[2], 9: kinds[4]}


def test_columns_of_any_length_may_have_no_attributes() -> None:
    maker = ArrowMaker()
    for count in (3, 1, 1, 100, 9, 2000):
        page = page_of([(each, 0, each.count, None) for each in entry_of([1] * count, "stored")])
        table = made(maker.stream(), page)
        assert (table.num_rows, attributed(table)) == (count, {})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reference", [None, log_key(5000, 1)])
def test_payloads_of_every_size(size: int, reference: bytes | None) -> None:
    for sizes in ([size] * 5, [size, 0, size, 300, size]):
        found = entry_of(sizes, "stored", is_stored=reference is not None)
        page = page_of([(entry, 0, entry.count, reference) for entry in found])
        assert rows_of(made(MAKER.stream(), page)) == polled(page)


def test_items_of_one_size_whose_payloads_differ() -> None:
    """An item of 63 payload bytes in a payload log is as long as one of 52 bytes in the message log."""
    reference = log_key(5000, 1)
    (stored,) = entry_of([63], "stored", is_stored=True)
    (inline,) = entry_of([52], "stored")
    assert len(stored.items) == len(inline.items)
    page = page_of([(stored, 0, 1, reference), (inline, 0, 1, None)])
    assert rows_of(made(MAKER.stream(), page)) == polled(page)


def test_a_stream_without_batches_has_its_columns() -> None:
    table = made(MAKER.stream())
    assert table.num_rows == 0
    assert table.schema == pa.schema(
        [
            ("id", pa.binary()),
            ("value", pa.binary()),
            ("key", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.binary())),
        ]
    )


def test_large_columns_are_separate_pieces() -> None:
    page = page_of([(entry, 0, entry.count, None) for entry in entry_of([1000] * 30, "stored")])
    stream = MAKER.stream()
    for _ in range(2):
        before, values, after = stream.batch(page)
        assert isinstance(values, memoryview)
        assert (len(values), len(before) + len(after) < 5000) == (30_000, True)
    assert len(stream.end()) == 8


def test_a_batch_is_whole_when_its_pieces_are_sent() -> None:
    """That holds for a small batch too, so a reader does not wait for the next one."""
    page = page_of([(entry, 0, entry.count, None) for entry in entry_of([1], "stored")])
    stream = MAKER.stream()
    received = pa.ipc.open_stream(b"".join(stream.batch(page)))
    assert received.read_next_batch().num_rows == 1
    assert len(stream.end()) == 8


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_a_missing_package_for_arrow_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    without: dict[str, Any] = {missing: None}
    for name, module in without.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(NotInstalled, match=r"tms-broker\[arrow\]"):
        ArrowMaker()


# --- Bulk reads over HTTP --------------------------------------------------------------------------

TOPIC = TopicId("default", "t")
ARROWS = topic_path("t", "arrow")
JSON = {"Content-Type": "application/json"}
MARKER = b"\xff\xff\xff\xff\0\0\0\0"


async def publish(broker: Broker, *payloads: bytes, pointer: int | None = None) -> object:
    return await broker.topics.publish(TOPIC, PublishRequest(pointer, payloads))


async def ids(broker: Broker) -> tuple[str, str]:
    """Return the earliest and the latest id."""
    told = (await broker.call("GET", topic_path("t", "range"))).json
    return told["earliest"], told["latest"]


def values(body: bytes) -> list[bytes]:
    assert body.endswith(MARKER)
    table = pa.ipc.open_stream(body).read_all()
    table.validate(full=True)
    assert table.column_names == ["id", "value", "key", "headers"]
    found: list[bytes] = table.column("value").to_pylist()
    return found


async def test_a_range_is_answered_as_a_stream_of_batches(broker: Broker, http: Http) -> None:
    payloads = [b"%d" % number for number in range(100)]
    await publish(broker, *payloads)
    earliest, latest = await ids(broker)
    for target in (f"?through={latest}", f"?after={earliest}&through={latest.upper()}"):
        reply = await http("GET", ARROWS + target)
        assert (reply.status, reply.headers["Content-Type"]) == (200, ARROW)
        assert values(reply.body) == payloads
    assert values((await http("GET", f"{ARROWS}?after={latest}&through={latest}")).body) == []


async def test_no_reply_is_compressed(broker: Broker, http: Http) -> None:
    await publish(broker, *[bytes(1000)] * 100)
    _, latest = await ids(broker)
    reply = await http("GET", f"{ARROWS}?through={latest}", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in reply.headers
    assert values(reply.body) == [bytes(1000)] * 100


@pytest.mark.parametrize("has_attributes", [False, True])
@pytest.mark.parametrize("count", [4095, 8192])
async def test_a_batch_of_large_columns_arrives_whole(
    broker: Broker, http: Http, count: int, *, has_attributes: bool
) -> None:
    """This holds even if no byte lies between two columns: an empty chunk would end the reply."""
    payloads = [b"%08d" % number for number in range(count)]
    encoded = [attributes.encode(each, {"number": each}) for each in payloads]
    request = PublishRequest(None, payloads, attributes=encoded if has_attributes else ())
    await broker.topics.publish(TOPIC, request)
    _, latest = await ids(broker)
    assert values((await http("GET", f"{ARROWS}?through={latest}")).body) == payloads


@pytest.mark.parametrize("thread_bytes_min", [0, 1 << 30])
async def test_a_long_range_comes_in_many_batches(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch, thread_bytes_min: int
) -> None:
    monkeypatch.setattr(bulk, "THREAD_BYTES_MIN", thread_bytes_min)
    for module in (topics, streams):
        monkeypatch.setattr(module, "BULK_BYTES", 5000)
    payloads = [b"%d" % number * (number % 7) for number in range(5000)]
    await publish(broker, *payloads)
    _, latest = await ids(broker)
    reply = await http("GET", f"{ARROWS}?through={latest}")
    assert values(reply.body) == payloads
    batches = pa.ipc.open_stream(reply.body)
    assert len(list(batches)) > 20


@pytest.mark.parametrize(
    "query",
    ["", "?after=" + "0" * 40, "?through=12", "?through=", "?after=x&through=" + "0" * 40],
)
async def test_a_malformed_range_is_refused(broker: Broker, query: str) -> None:
    assert (await broker.call("GET", ARROWS + query)).status == 400


async def test_a_range_beyond_the_end_and_a_missing_topic_are_refused(broker: Broker) -> None:
    await publish(broker, b"m")
    _, latest = await ids(broker)
    beyond = "7" + latest[1:]
    reply = await broker.call("GET", f"{ARROWS}?through={beyond}")
    assert (reply.status, "through" in reply.body.decode()) == (400, True)
    missing = await broker.call("GET", topic_path("no", f"arrow?through={latest}"))
    assert missing.status == 404
    assert (await broker.call("POST", f"{ARROWS}?through={latest}", b"{}", JSON)).status == 400


async def test_a_transaction_reads_its_visible_messages(broker: Broker) -> None:
    await publish(broker, b"plain")
    _, before = await ids(broker)
    pointer = broker.clock.now_ms() * 1_000_000
    done = await publish(broker, b"open", pointer=pointer)
    await publish(broker, b"behind")
    _, latest = await ids(broker)
    snapshot = Snapshot(transaction_id=pointer + 5, read_pointer=pointer + 1, in_progress=[pointer])
    body = b'{"snapshot": "%b"}' % encode_transaction(snapshot).hex().encode()
    reply = await broker.call("POST", f"{ARROWS}?through={latest}", body, JSON)
    assert values(reply.body) == [b"plain"]
    assert BLOCKED_BY_HEADER not in reply.headers
    held = await broker.call("POST", f"{ARROWS}?after={before}&through={latest}", body, JSON)
    assert (values(held.body), held.headers[BLOCKED_BY_HEADER]) == ([], str(pointer))
    everything = await broker.call("GET", f"{ARROWS}?through={latest}")
    assert values(everything.body) == [b"plain", b"open", b"behind"]
    await broker.topics.rollback(TOPIC, RollbackRange(pointer, done.first, done.last))  # type: ignore[attr-defined]
    reply = await broker.call("POST", f"{ARROWS}?through={latest}", body, JSON)
    assert values(reply.body) == [b"plain", b"behind"]


async def test_a_node_without_the_extra_says_what_to_install(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    reply = await broker.call("GET", f"{ARROWS}?through={'0' * 40}")
    assert (reply.status, reply.headers["Broker-Error"]) == (501, "not_installed")
    assert "tms-broker[arrow]" in reply.body.decode()
    monkeypatch.undo()
    assert (await broker.call("GET", f"{ARROWS}?through={'0' * 40}")).status == 200


async def take_all(content: aiohttp.StreamReader, received: bytearray) -> None:
    while chunk := await content.readany():
        received += chunk


async def test_a_reply_that_fails_halfway_is_cut_off(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BULK_BYTES", 1000)
    monkeypatch.setattr(topics, "BULK_BYTES", 1000)
    await publish(broker, *[bytes(100)] * 100)
    _, latest = await ids(broker)
    real, calls = TopicState.next_page, iter(range(100))

    async def failing(self: TopicState, *arguments: object) -> PollPage:
        if next(calls) == 3:
            raise Unavailable("storage is gone")
        return await real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicState, "next_page", failing)
    received = bytearray()
    async with http.session.get(f"{http.url}{ARROWS}?through={latest}") as reply:
        assert reply.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await take_all(reply.content, received)
    assert received
    assert MARKER not in received


async def test_a_client_reads_on_where_a_reply_was_cut_off(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also among the messages of a reference, which all have the row of the reference."""
    for module in (topics, streams):
        monkeypatch.setattr(module, "BULK_BYTES", 2000)
    pointer = broker.clock.now_ms() * 1_000_000
    payloads = [b"%d" % number * 20 for number in range(300)]
    await publish(broker, *payloads[:100])
    await broker.topics.store(TOPIC, PublishRequest(pointer, payloads[100:200]))
    await publish(broker, pointer=pointer)
    await publish(broker, *payloads[200:])
    polled = await broker.topics.poll(TOPIC, Poll())
    wanted = [message async for messages in polled.messages() for message in messages]
    assert [message.payload for message in wanted] == payloads
    real, calls = TopicState.next_page, 0

    async def failing(self: TopicState, *arguments: object) -> PollPage:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise Unavailable("storage is gone for a moment")
        return await real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicState, "next_page", failing)
    async with Client(http.url, namespace="default", retry_delay_min_s=0.0) as client:
        found = await client.range("t")
        got = client.read_arrow("t", after=found.after, through=found.through)
        batches = [batch.to_pydict() async for batch in got]
    assert [i for batch in batches for i in batch["id"]] == [message.id for message in wanted]
    assert [v for batch in batches for v in batch["value"]] == payloads
    assert calls > 8


@pytest.mark.slow
async def test_a_slow_reader_holds_one_batch(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    real = TopicState.next_page

    async def noted(self: TopicState, *arguments: object) -> PollPage:
        nonlocal made
        made += 1
        return await real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicState, "next_page", noted)
    for _ in range(16):
        await publish(broker, *[bytes(10_000)] * 200)
    _, latest = await ids(broker)
    async with http.session.get(f"{http.url}{ARROWS}?through={latest}") as reply:
        before = 0
        while before < made:  # Until nothing more is read ahead of the reader.
            before = made
            await settle(1000)
        gc.collect()
        assert 0 < made < 16
        assert not any(type(page) is PollPage and page.count for page in gc.get_objects())
        assert len(values(await reply.read())) == 3200


@on_cluster()
async def test_any_node_answers_by_itself_and_all_alike(cluster: HttpCluster) -> None:
    """Without a forward, with the leader, without it, and after another node leads."""
    payloads = [b"%d" % number for number in range(500)]
    async with cluster.client(0) as client:
        await client.publish("t", payloads)
        found = await client.range("t")
    for node in range(3):
        assert await read_at(cluster, node, found.through) == payloads
    assert [cluster.forwarded(node, "arrow") for node in range(3)] == [[]] * 3
    await cluster.lead(1)
    async with cluster.client(2) as client:
        await client.publish("t", [b"later"])
    cluster.machines[0].kill()
    for node in (1, 2):
        assert await read_at(cluster, node, found.through) == payloads


async def read_at(cluster: HttpCluster, node: int, through: bytes) -> list[bytes]:
    async with cluster.client(node, follow_leaders=False) as client:
        got = client.read_arrow("t", through=through)
        return [value for batch in [b async for b in got] for value in batch.to_pydict()["value"]]
