import asyncio

import pytest

from broker.http.pool import Pool


class Kept:
    """A connection as a pool uses it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.usable = True
        self.fresh = True
        self.idle_since = asyncio.get_running_loop().time()
        self.requests_in_flight = 0
        self.closed: str | None = None

    def is_fresh(self, idle_s_max: float) -> bool:
        return self.usable and self.fresh

    def close(self, reason: str = "") -> None:
        self.usable, self.closed = False, reason


class Bench:
    """A pool of two places, and its connections."""

    def __init__(self) -> None:
        self.pool: Pool[Kept] = Pool(2, 60)  # type: ignore[type-var]
        self.made: list[Kept] = []

    def take(self, url: str = "http://a") -> Kept:
        connection = self.pool.take(url)
        if connection is None:
            connection = self.pool.add(Kept(url))
            self.made.append(connection)
        return connection


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_the_connection_used_last_is_used_again(bench: Bench) -> None:
    first, second = bench.take(), bench.take()
    bench.pool.put_back(first)
    bench.pool.put_back(second)
    assert bench.take() is second
    assert bench.take() is first
    assert bench.made == [first, second]


async def test_a_connection_to_another_server_is_no_use(bench: Bench) -> None:
    bench.pool.put_back(first := bench.take("http://a"))
    assert bench.take("http://b") is not first
    assert bench.take("http://a") is first


@pytest.mark.parametrize("change", [{"fresh": False}, {"usable": False}])
async def test_a_stale_connection_is_closed_and_not_used(
    bench: Bench, change: dict[str, bool]
) -> None:
    bench.pool.put_back(first := bench.take())
    vars(first).update(change)
    assert bench.take() is not first
    assert first.closed is not None


async def test_a_connection_that_waits_for_an_answer_is_not_kept(bench: Bench) -> None:
    first = bench.take()
    first.requests_in_flight = 1
    bench.pool.put_back(first)
    assert first.closed is not None
    assert bench.take() is not first


async def test_a_new_connection_closes_those_that_were_idle_for_too_long(bench: Bench) -> None:
    bench.pool.put_back(old := bench.take("http://a"))
    old.idle_since -= 61
    bench.take("http://b")
    assert old.closed is not None


async def test_the_pool_keeps_no_more_connections_than_places(bench: Bench) -> None:
    for url in ("http://a", "http://b", "http://c"):
        bench.pool.put_back(bench.take(url))
    assert [one.closed is None for one in bench.made] == [False, True, True]


async def test_a_request_waits_for_a_place(bench: Bench) -> None:
    assert await bench.pool.enter(0)
    assert await bench.pool.enter(0)
    assert not await bench.pool.enter(0.01)
    asyncio.get_running_loop().call_soon(bench.pool.leave)  # While the next one waits.
    async with asyncio.timeout(10):
        assert await bench.pool.enter(60)


async def test_a_place_that_came_too_late_is_not_lost(bench: Bench) -> None:
    for _ in range(2):
        assert await bench.pool.enter(0)
    assert not await bench.pool.enter(0)
    bench.pool.leave()
    assert await bench.pool.enter(0)


async def test_a_close_ends_all_connections(bench: Bench) -> None:
    bench.pool.put_back(bench.take("http://a"))
    bench.take("http://b")
    bench.pool.close("it is over")
    assert [one.closed for one in bench.made] == ["it is over"] * 2
    bench.pool.put_back(bench.made[1])
    assert bench.take("http://b") not in bench.made[:2]
