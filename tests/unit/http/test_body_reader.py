"""The reader of bodies alone: how much it holds, in which thread it works, and how long it waits."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
import zlib
from collections.abc import Iterator

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from broker.config.sections import Config, LimitsConfig, ServerConfig
from broker.errors import BadRequest, BodyTooLarge, BrokerError
from broker.http import body as body_module
from broker.http.body import MEMBERS_MAX, STEP_BYTES_MAX, Body, BodyReader, Inflater
from broker.http.budget import Bounds, BudgetKind, Budgets, Cut, Usage
from broker.http.pieces import FREED_SLABS_MAX, SLAB_BYTES, DroppedSlabs, Pieces
from tests.kit.bench import settle

MIB = 1 << 20
BODY = BudgetKind.BODY_BYTES
GZIP = {"Content-Encoding": "gzip"}


def came(*pieces: bytes, ends: bool = True) -> StreamReader:
    """Return a body whose pieces have arrived. Without ``ends`` it never ends."""
    content = StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 30)
    content._protocol.transport = asyncio.Transport()
    for piece in pieces:
        content.feed_data(piece)
    if ends:
        content.feed_eof()
    return content


class Watched(Usage):
    """A request's hold that records its amount after each change."""

    __slots__ = ("_sent",)

    def __init__(self, sent: Sent) -> None:
        super().__init__(sent.budgets.account("a", lambda _: None))
        self._sent = sent

    def take(self, kind: BudgetKind, amount: int = 1) -> None:
        super().take(kind, amount)
        self._sent.heights.append(self._sent.held)


class Sent:
    """Bodies sent to a reader, and the amount held for them."""

    def __init__(self, connection_bytes_max: int = 192 * MIB) -> None:
        self.reader = BodyReader(Config())
        bounds = Bounds(connection_bytes_max, 1024 * MIB, 1024 * MIB)
        self.budgets = Budgets({BODY: bounds})
        self.heights: list[int] = []
        """The amount held after each piece."""
        self.usage = Watched(self)

    async def read(self, *pieces: bytes, gzipped: bool = False, most: int | None = None) -> bytes:
        """Read a body that arrives in pieces."""
        headers = GZIP if gzipped else {}
        return await self.reader.read(came(*pieces), headers, self.usage, most)

    @property
    def held(self) -> int:
        return self.budgets.used[BODY]


@pytest.fixture
def sent() -> Iterator[Sent]:
    """A reader with the default bounds."""
    sent = Sent()
    yield sent
    sent.reader.close()


def length(told: int | None) -> dict[str, str]:
    return {} if told is None else {"Content-Length": str(told)}


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.parametrize("size", [0, 1, 300_000, 5 * MIB, 40 * MIB])
async def test_a_body_is_read_whole_and_held_once(sent: Sent, size: int) -> None:
    body = random.Random(size).randbytes(size)
    assert await sent.read(*cut(body, 300_000)) == body
    assert sent.held == size


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 300_000, 5 * MIB, 40 * MIB])
async def test_an_inflated_body_is_held_as_inflated(sent: Sent, size: int) -> None:
    body = random.Random(size).randbytes(1 + size // 3) * 3
    packed = gzip.compress(body, 1)
    assert await sent.read(*cut(packed, 300_000), gzipped=True) == body
    assert sent.held == len(body)


async def test_a_gzip_bomb_is_refused_before_it_is_inflated() -> None:
    sent = Sent(connection_bytes_max=2 * MIB)
    with pytest.raises(BodyTooLarge, match="body_bytes"):
        await sent.read(gzip.compress(bytes(50 * MIB)), gzipped=True)
    assert 2 * MIB - STEP_BYTES_MAX - 100_000 < max(sent.heights) <= 2 * MIB
    assert sent.held == 0


async def test_a_connection_cut_as_its_body_ends_has_no_body(sent: Sent) -> None:
    """Its client is told that the request was refused, so that it sends it again."""
    account = sent.budgets.account("b", lambda _: None)
    content = came(b"body", ends=False)
    reading = asyncio.ensure_future(sent.reader.read(content, {}, Usage(account)))
    await settle(5)
    content.feed_eof()
    account.cut(BODY)
    with pytest.raises(Cut):
        await reading
    assert sent.held == 0


@pytest.mark.parametrize("way", ["cut", "closed"])
async def test_a_body_that_waits_for_a_thread_ends_with_its_connection(
    sent: Sent, way: str
) -> None:
    """Its bytes do not count any more: while hundreds of others waited, the node held them beside all that count."""
    reader, go = sent.reader, threading.Event()
    busy = [asyncio.ensure_future(reader._in_thread(go.wait)) for _ in range(body_module.THREADS)]
    await settle(1)
    account = sent.budgets.account("b", lambda _: None)
    content = came(gzip.compress(random.Random(1).randbytes(100_000)))
    reading = asyncio.ensure_future(sent.reader.read(content, GZIP, Usage(account)))
    await settle(5)
    assert not reading.done()
    try:
        if way == "cut":
            account.cut(BODY)
        else:
            account.close()
        await settle(5)
        assert isinstance(reading.exception(), Cut if way == "cut" else ConnectionResetError)
    finally:
        go.set()
    assert all(await asyncio.gather(*busy))
    assert sent.held == 0


async def test_slabs_of_bodies_that_were_given_up_are_freed_before_others_are_held() -> None:
    dropped = DroppedSlabs()
    former = [Pieces(dropped) for _ in range(10)]
    for each in former:
        each.add(bytes(2 * SLAB_BYTES))
    slabs = [slab for each in former for slab in each._slabs]
    assert len(slabs) == 20
    for each in former:
        each.clear()

    def freed() -> int:
        return sum(slab.closed for slab in slabs)

    assert freed() == 0
    other = Pieces(dropped)
    other.add(b"x")
    assert freed() == 1
    await settle(1)
    assert freed() == 1 + FREED_SLABS_MAX
    await settle(5)
    assert freed() == 20
    assert other.joined() == b"x"


async def test_nothing_is_held_of_a_body_past_its_bound(sent: Sent) -> None:
    bomb = gzip.compress(bytes(5 * MIB))
    with pytest.raises(BodyTooLarge, match="4,194,304"):
        await sent.read(bomb, gzipped=True, most=4 * MIB)
    assert max(sent.heights) <= 4 * MIB + len(bomb) + 1
    assert sent.held == 0
    with pytest.raises(BodyTooLarge, match="100 bytes"):
        await sent.read(b"x" * 101, most=100)


async def test_an_error_that_is_kept_keeps_no_body(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Pieces] = []
    monkeypatch.setattr(body_module, "Pieces", lambda bin_: made.append(Pieces(bin_)) or made[-1])
    cut_off = gzip.compress(bytes(9 * MIB))[:-1]
    with pytest.raises(BadRequest, match="cut off"):
        await sent.read(cut_off, gzipped=True)
    (pieces,) = made
    assert pieces.size == 9 * MIB
    await settle(5)
    assert pieces.joined() == b""
    assert sent.held == 0


async def test_a_body_of_just_its_bound_passes(sent: Sent) -> None:
    assert len(await sent.read(b"x" * 100, most=100)) == 100
    packed = gzip.compress(b"x" * STEP_BYTES_MAX)
    assert len(await sent.read(packed, gzipped=True, most=STEP_BYTES_MAX)) == STEP_BYTES_MAX


@pytest.mark.parametrize(
    ("packed", "threads"),
    [
        (gzip.compress(b"x" * 1000), {"MainThread"}),
        (gzip.compress(bytes(8 * MIB)), {"MainThread", "body"}),
        (gzip.compress(random.Random(1).randbytes(100_000)), {"body"}),
        (gzip.compress(b"") * 200, {"MainThread", "body"}),
    ],
    ids=["small", "bomb", "large", "members"],
)
async def test_long_inflating_runs_in_its_own_threads(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, packed: bytes, threads: set[str]
) -> None:
    seen: list[str] = []
    step = Inflater.step

    def watched(inflater: Inflater) -> bytes:
        seen.append(threading.current_thread().name.partition("_")[0])
        return step(inflater)

    monkeypatch.setattr(Inflater, "step", watched)
    assert await sent.read(packed, gzipped=True) == gzip.decompress(packed)
    assert set(seen) == threads
    assert seen.count("MainThread") <= 2


async def test_too_many_members_are_refused(sent: Sent) -> None:
    empty = gzip.compress(b"")
    assert await sent.read(empty * MEMBERS_MAX, gzipped=True) == b""
    with pytest.raises(BadRequest, match="members"):
        await sent.read(empty * (MEMBERS_MAX + 1), gzipped=True)


@pytest.mark.parametrize(
    ("told", "headers"),
    [
        (1, {"Content-Encoding": "gzip, gzip"}),
        (None, {"Content-Encoding": "gzip, br"}),
        (1, {"Content-Encoding": "deflate"}),
        (1, {"Content-Encoding": "identity", "content-encoding": "br"}),
        (64 * MIB + 1, {}),
        (10**18, {}),
    ],
)
def test_a_body_is_refused_by_its_headers_before_it_arrives(
    sent: Sent, told: int | None, headers: dict[str, str]
) -> None:
    with pytest.raises(BrokerError):
        sent.reader.check_told({**headers, **length(told)})


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "X-GZIP", "identity, gzip", ","])
def test_a_readable_body_passes_the_check_of_headers(sent: Sent, encoding: str) -> None:
    sent.reader.check_told({"Content-Encoding": encoding, **length(64 * MIB)})


def test_a_length_over_the_bound_of_the_route_is_refused(sent: Sent) -> None:
    sent.reader.check_told(length(100), 100)
    with pytest.raises(BodyTooLarge, match="100 bytes"):
        sent.reader.check_told(length(101), 100)


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def timed(clock: Clock) -> Body:
    """Return a body whose credit of time is 30 s."""
    config = ServerConfig(body_stall_s=30.0, body_bytes_per_s_min=1000, body_deadline_s=600.0)
    return Body(came(b""), in_chunks=False, config=config, now=clock)


async def test_patience_ends_with_a_stalled_body() -> None:
    clock = Clock()
    patience = timed(clock)
    assert patience.left_s(clock()) == 30.0
    patience.came(64 * MIB, 1.0)
    assert patience.left_s(clock()) == 30.0


async def test_patience_ends_with_a_body_that_trickles() -> None:
    clock = Clock()
    patience = timed(clock)
    patience.came(64 * MIB, 0.0)
    for _ in range(10):
        patience.came(1, 3.0)
    assert patience.left_s(clock()) == pytest.approx(0.01)
    patience.came(2000, 0.01)
    assert patience.left_s(clock()) == pytest.approx(2.0)


async def test_a_body_at_the_lowest_rate_has_until_its_deadline() -> None:
    clock = Clock()
    patience = timed(clock)
    for _ in range(59):
        clock.now_s += 10.0
        patience.came(10_000, 10.0)
    assert patience.left_s(clock()) == pytest.approx(10.0)


async def test_a_body_that_never_ends_is_given_up_at_its_deadline() -> None:
    server = ServerConfig(body_stall_s=30.0, body_deadline_s=0.1)
    reader = BodyReader(Config(server=server, limits=LimitsConfig()))
    content = came(gzip.compress(b"x" * 100)[:-1], ends=False)
    with pytest.raises(BadRequest, match=r"did not arrive whole within 0\.1 seconds"):
        await reader.read(content, GZIP, Usage(None))


def test_deflate_without_a_head_is_no_gzip() -> None:
    inflater = Inflater(1000)
    inflater.feed(zlib.compress(b"x"))
    with pytest.raises(BadRequest, match="not gzip"):
        inflater.step()
