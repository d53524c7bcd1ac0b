import asyncio

import pytest

from broker.coordination.instances import (
    START_S,
    Claim,
    check_incarnation,
    choose,
    claim_instance,
    decode,
    encode,
    read_claims,
    record_key,
    until_superseded,
)
from broker.coordination.memory import MemoryCoordination
from broker.coordination.ports import InstanceTaken, NodeInfo
from broker.errors import OutcomeUnknown, StorageCorrupt, Unavailable
from broker.testing.memory import MemoryRecords
from broker.testing.mutants import in_force
from broker.testing.virtual_time import VirtualClock, pass_time, simulate, within


def node(name: str, incarnation: str = "first") -> NodeInfo:
    return NodeInfo(0, f"{name}-{incarnation}", f"http://{name}:8080", "1", 1)


class World:
    """Coordination and records that several nodes share."""

    def __init__(self, loop):
        self.clock = VirtualClock(loop)
        self.coordination = MemoryCoordination(self.clock)
        self.records = MemoryRecords()

    async def start(self, name, incarnation="first", *, configured=None, records=None):
        session = self.coordination.session()
        membership = await claim_instance(
            session,
            records or self.records,
            node(name, incarnation),
            self.clock,
            configured=configured,
        )
        return session, membership


def in_world(scenario):
    return simulate(lambda loop: scenario(World(loop)))


def test_nodes_get_the_lowest_free_numbers():
    async def scenario(world):
        members = [(await world.start(name))[1] for name in "abc"]
        assert [member.me.instance for member in members] == [0, 1, 2]
        await members[1].leave()
        _, d = await world.start("d")
        assert d.me.instance == 1
        claims = await read_claims(world.records)
        assert claims[1] == Claim("d-first", "http://d:8080", d.session)
        assert [claims[n].incarnation for n in range(3)] == ["a-first", "d-first", "c-first"]

    in_world(scenario)


def test_a_node_that_starts_again_has_its_number_again():
    async def scenario(world):
        a, _ = await world.start("a")
        b, _ = await world.start("b")
        # After kill -9: its session still lives, and so does its ephemeral node.
        await world.coordination.crash(b)
        _, again = await world.start("b", "second")
        assert again.me.instance == 1
        assert world.clock.monotonic() == 0.0, "at once"
        # After a whole night only the record names its number.
        await a.close()
        await again.leave()
        await pass_time(10_000)
        _, again = await world.start("b", "third")
        assert again.me.instance == 1
        assert (await read_claims(world.records))[1].incarnation == "b-third"

    in_world(scenario)


def test_an_undecodable_claim_is_ignored_and_replaced():
    async def scenario(world):
        await world.records.put_if(b"instance/000", None, b"{")
        await world.records.put_if(b"instance/odd", None, b"{}")
        assert await read_claims(world.records) == {}
        _, a = await world.start("a")
        assert a.me.instance == 0
        assert (await read_claims(world.records))[0].incarnation == "a-first"

    in_world(scenario)


def test_a_configured_number_of_another_live_node_is_refused_with_its_holder():
    async def scenario(world):
        await world.start("a", configured=7)
        with pytest.raises(
            InstanceTaken, match="Instance id 7 is held by the live node at http://a:80"
        ):
            await world.start("b", configured=7)
        assert (await read_claims(world.records))[7].incarnation == "a-first"
        _, b = await world.start("b")
        assert b.me.instance == 0

    in_world(scenario)


def test_a_configured_number_is_free_when_its_session_is_over():
    async def scenario(world):
        a, _ = await world.start("a", configured=7)
        await world.coordination.crash(a)
        with pytest.raises(InstanceTaken):
            await world.start("b", configured=7)
        await pass_time(5.0)
        _, b = await world.start("b", configured=7)
        assert (await read_claims(world.records))[7] == Claim("b-first", "http://b:8080", b.session)

    in_world(scenario)


@pytest.mark.slow
def test_nodes_that_start_together_get_different_numbers():
    async def scenario(world):
        world.coordination.delay_s = 0.01
        started = await asyncio.gather(*(world.start(f"n{number}") for number in range(20)))
        assert sorted(member.me.instance for _, member in started) == list(range(20))
        claims = await read_claims(world.records)
        for _, member in started:
            assert claims[member.me.instance].incarnation == member.me.incarnation

    in_world(scenario)


def test_an_incarnation_stops_when_another_has_its_number():
    """The node is cut off from coordination, not from storage. Its session ends, and another node takes its number."""

    async def scenario(world):
        a, member = await world.start("a")
        stopping = asyncio.ensure_future(until_superseded(world.records, member, world.clock))
        world.coordination.suspend(a)
        await pass_time(5.0)
        _, b = await world.start("b")
        assert b.me.instance == 0
        assert not member.stopped.done(), "it has no contact with coordination"
        reason = await within(60.0, stopping, lambda: "it goes on")
        assert reason == "Instance id 0 was claimed by another incarnation, at http://b:8080."

    in_world(scenario)


def test_without_the_guard_an_incarnation_goes_on_under_the_number_of_another():
    with in_force("id-claim"), pytest.raises(AssertionError, match="it goes on"):
        test_an_incarnation_stops_when_another_has_its_number()


def test_an_incarnation_stops_when_it_has_contact_again():
    async def scenario(world):
        a, member = await world.start("a")
        world.coordination.expire(a, noticed_after_s=0.5)
        await world.start("b")
        reason = await until_superseded(world.records, member, world.clock, every_s=3600.0)
        assert "another incarnation" in reason
        assert world.clock.monotonic() < 1.0

    in_world(scenario)


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_of_two_nodes_with_one_url_the_earlier_stops_and_its_reason_has_advice(is_cut_off):
    async def scenario(world):
        a, member = await world.start("a")
        stopping = asyncio.ensure_future(until_superseded(world.records, member, world.clock))
        if is_cut_off:
            world.coordination.suspend(a)
        await world.start("a", "second")
        reason = await within(60.0, stopping, lambda: "it goes on")
        assert "at the same URL" in reason
        assert "advertised_url" in reason

    in_world(scenario)


def test_an_incarnation_without_a_successor_does_not_stop():
    async def scenario(world):
        a, member = await world.start("a")
        stopping = asyncio.ensure_future(until_superseded(world.records, member, world.clock))
        world.coordination.expire(a)
        await pass_time(100.0)
        assert await check_incarnation(world.records, member.me) is None
        assert not stopping.done()
        assert member.session != 0

    in_world(scenario)


class Unsure(MemoryRecords):
    """Answers each put with an unknown outcome; it does only every second put."""

    def __init__(self):
        super().__init__()
        self.puts = 0

    async def put_if(self, key, expected, value):
        self.puts += 1
        if self.puts % 2 == 0:
            await super().put_if(key, expected, value)
        raise OutcomeUnknown("lost")


def test_a_claim_with_an_unknown_outcome_is_repeated_until_the_record_shows_it():
    async def scenario(world):
        records = Unsure()
        _, member = await world.start("a", records=records)
        assert records.puts == 2
        assert (await read_claims(records))[0].incarnation == member.me.incarnation

    in_world(scenario)


class Overtaken(MemoryRecords):
    """Awaits ``meanwhile`` just before the first put."""

    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    async def put_if(self, key, expected, value):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().put_if(key, expected, value)


def test_a_late_claim_does_not_replace_the_claim_of_the_next_holder():
    async def scenario(world):
        async def lose_number_to_b():
            world.coordination.suspend(world.a, session_ends_after_s=0.0)
            await pass_time(0.1)
            await world.start("b", records=records)
            world.coordination.resume(world.a)

        records = Overtaken(lose_number_to_b)
        world.a = world.coordination.session()
        member = await claim_instance(world.a, records, node("a"), world.clock)
        claims = await read_claims(records)
        assert claims[0].incarnation == "b-first"
        assert (member.me.instance, claims[1].incarnation) == (1, "a-first")

    in_world(scenario)


@pytest.mark.parametrize("configured", [None, 7])
def test_a_node_starts_although_it_loses_its_session_meanwhile(configured):
    async def scenario(world):
        world.coordination.delay_s = 0.01
        starting = asyncio.ensure_future(world.start("a", configured=configured))
        for _ in range(5):
            await pass_time(0.015)
            assert not starting.done()
            for session in list(world.coordination.nodes.sessions):
                world.coordination.nodes.end_session(session)
        _, member = await within(START_S, starting, lambda: "it does not start")
        assert member.me.instance == (configured or 0)
        await pass_time(3.0)
        live = await world.coordination.session().nodes()
        assert [info.incarnation for info in live.values()] == ["a-first"]

    in_world(scenario)


def test_a_node_keeps_its_number_if_it_loses_its_session_before_it_writes_the_record():
    async def scenario(world):
        async def lose_session():
            world.coordination.expire(world.a)

        records = Overtaken(lose_session)
        world.a = world.coordination.session()
        member = await claim_instance(world.a, records, node("a"), world.clock)
        assert member.me.instance == 0
        assert (await read_claims(records))[0].incarnation == "a-first"

    in_world(scenario)


def test_a_starting_node_waits_for_a_coordinator_for_a_limited_time():
    async def scenario(world):
        world.coordination.outage()
        with pytest.raises(Unavailable, match="can't be read"):
            await world.start("a")
        assert START_S <= world.clock.monotonic() < START_S + 1

    in_world(scenario)


def test_a_node_leaves_the_members_if_its_storage_fails():
    class Failing(MemoryRecords):
        async def get(self, key):
            raise Unavailable("no storage")

    async def scenario(world):
        with pytest.raises(Unavailable, match="no storage"):
            await world.start("a", records=Failing())
        assert await world.coordination.session().nodes() == {}

    in_world(scenario)


def test_an_error_tells_that_all_numbers_are_held():
    live = {number: node(f"n{number}") for number in range(256)}
    with pytest.raises(Unavailable, match="256"):
        choose(live, {}, "http://new:1")
    assert choose(live, {}, "http://n77:8080") == 77


def test_a_claim_is_decoded_as_it_was_encoded():
    claim = Claim("i", "http://a:1", 0x10000D3CCFB0002)
    assert decode(b"k", encode(claim)) == claim
    assert b'"0x10000d3ccfb0002"' in encode(claim)
    for value in (b"", b"[]", b"{}", b'{"incarnation":"i","url":"u","session":7}'):
        with pytest.raises(StorageCorrupt, match="instance/007"):
            decode(record_key(7), value)
