"""``async with client.transaction()``: which requests it sends when, and how it ends after lost answers."""

# ruff: noqa: PT012, SIM117 - The tests need whole blocks.

import asyncio
from contextlib import suppress

import pytest

from broker.client import (
    BadRequest,
    NewMessage,
    OutcomeUnknown,
    TopicNotFound,
    TransactionConflict,
    TransactionNotInProgress,
    Undoable,
)
from broker.client.client_request import Reply
from broker.errors import NoLeader
from broker.wire import avro, messages
from tests.kit.bench import settle
from tests.kit.request_bodies import read_poll
from tests.unit.client.stand_in import LOST, Foreign, OverHttp, Topics


@pytest.fixture
def topics():
    return Topics()


@pytest.fixture
def service(transport, topics):
    transport.answer = OverHttp(topics)
    return transport.answer


async def test_the_end_of_the_block_publishes_and_commits(make_client, service, topics):
    async with make_client(namespace="ns") as client:
        async with client.transaction() as tx:
            assert (tx.id, tx.snapshot.read_pointer, tx.state) == (1001, 1000, "in_progress")
            await tx.publish("a", [b"0", "1"])
            await tx.publish("b", b"2")
            await tx.publish(("ns", "a"), b"3")
            assert topics.published == []
        assert tx.state == "committed"
    assert topics.published == [("a", 1001, [b"0", b"1", b"3"]), ("b", 1001, [b"2"])]
    assert service.calls == ["start", "can_commit", "commit"]


async def test_a_publish_of_another_task_during_the_commit_is_refused(
    make_client, service, topics, transport
):
    def hold_the_publish():
        transport.gate = asyncio.Event()

    async def block():
        async with tx:
            await tx.publish("ns/a", b"0")
            await tx.add(Undoable(hold_the_publish, lambda: True))

    async with make_client() as client:
        tx = client.transaction()
        ending = asyncio.create_task(block())
        await transport.arrived(3)  # start, can_commit, publish.
        late = asyncio.create_task(tx.publish("ns/a", b"late"))
        await settle()
        transport.gate.set()
        await ending
        with pytest.raises(TransactionNotInProgress, match="being ended"):
            await late
    assert (tx.state, topics.published) == ("committed", [("a", 1001, [b"0"])])


async def test_a_publish_of_a_participant_in_its_commit_and_after_a_checkpoint_is_taken(
    make_client, service, topics
):
    async with make_client() as client, client.transaction() as tx:
        await tx.checkpoint()
        await tx.publish("ns/a", b"0")
        await tx.add(Undoable(lambda: tx.publish("ns/a", b"1"), lambda: True))
    assert [payloads for _, _, payloads in topics.published] == [[b"0", b"1"]]


async def test_an_exception_undoes_everything(make_client, service, topics):
    with pytest.raises(KeyError, match="mine"):
        async with make_client() as client, client.transaction() as tx:
            await tx.publish("ns/a", b"0")
            await tx.checkpoint()
            await tx.publish("ns/a", b"1")
            raise KeyError("mine")
    assert (tx.state, topics.rolled_back) == ("aborted", [b"range 1"])
    assert service.calls == ["start", "checkpoint", "abort"]


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_publish_of_unknown_outcome_makes_the_transaction_invalid(
    make_client, service, topics, cut, foreign
):
    used = Foreign() if foreign else None
    topics.cut = ["", cut]
    with pytest.raises(OutcomeUnknown):
        async with make_client() as client, client.transaction(service=used) as tx:
            await tx.publish("ns/a", b"0")
            await tx.publish("ns/b", b"1")
    rules = used.rules if used else service.rules
    assert (tx.state, rules.aborted, rules.invalids) == ("invalid", [], {1001})
    assert topics.rolled_back == [b"range 1"]


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
async def test_an_unknown_publish_and_an_unknown_invalidation_are_reported(
    make_client, service, topics, foreign
):
    used = Foreign() if foreign else service
    used.cut["invalidate"] = ["before"] * 1000
    topics.cut = ["before"]
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(OutcomeUnknown, match="It was not aborted"):
            async with client.transaction(service=used if foreign else None) as tx:
                await tx.publish("ns/a", b"0")
    assert (tx.state, used.rules.aborted) == ("unknown", [])
    assert 1001 in used.rules.in_progress


async def test_a_cancelled_publish_makes_the_transaction_invalid(make_client, transport, service):
    async def work(client):
        async with client.transaction() as tx:
            states.append(tx)
            await tx.publish("ns/a", b"0")

    states = []
    sent, publishing = transport.send, asyncio.Event()

    async def send(request, timeout_s):
        if "/publish" in request.path:
            publishing.set()
            await asyncio.Event().wait()
        return await sent(request, timeout_s)

    transport.send = send
    async with make_client() as client:
        task = asyncio.create_task(work(client))
        await publishing.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    (tx,) = states
    assert (tx.state, service.rules.aborted) == ("invalid", [])


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_commit_of_unknown_outcome_is_settled(make_client, service, topics, cut, foreign):
    used = Foreign() if foreign else service
    used.cut["commit"] = [cut]
    async with make_client() as client:
        async with client.transaction(service=used if foreign else None) as tx:
            await tx.publish("ns/a", b"0")
    assert (tx.state, topics.rolled_back) == ("committed", [])
    assert len(used.rules.committed) == 1


@pytest.mark.slow
async def test_after_a_commit_that_stays_unknown_nothing_is_undone(make_client, service, topics):
    service.cut["commit"] = ["after"]
    service.cut["snapshot"] = [LOST] * 1000
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(OutcomeUnknown, match="Nothing was undone"):
            async with client.transaction() as tx:
                await tx.publish("ns/a", b"0")
    assert (tx.state, topics.rolled_back, service.rules.aborted) == ("unknown", [], [])


async def test_a_refused_publish_is_undone_and_aborted(make_client, service, topics):
    topics.cut = ["", Reply(404, {"broker-error": "topic_not_found"}, b"no")]
    with pytest.raises(TopicNotFound):
        async with make_client() as client, client.transaction() as tx:
            await tx.publish("ns/a", b"0")
            await tx.publish("ns/b", b"1")
    assert (tx.state, topics.rolled_back) == ("aborted", [b"range 1"])


# --- Large transactions ---------------------------------------------------------------------------


async def test_messages_beyond_the_buffer_are_stored_and_published_by_reference(
    make_client, service, topics
):
    async with make_client(batch_messages_max=2) as client:
        async with client.transaction(buffer_bytes_max=1000) as tx:
            for number in range(10):
                await tx.publish("ns/large", b"%d" % number * 100)
                await tx.publish("ns/small", b"%d" % number)
    large = [
        payload[:1] for topic, _, found in topics.stored if topic == "large" for payload in found
    ]
    assert large == [b"%d" % number for number in range(10)]
    assert {pointer for _, pointer, _ in topics.stored} == {1001}
    assert all(len(found) <= 2 for _, _, found in topics.stored)
    published = {topic: found for topic, _, found in topics.published}
    assert published["large"] == []
    small = [payload for topic, _, found in topics.stored if topic == "small" for payload in found]
    assert small + published["small"] == [b"%d" % number for number in range(10)]
    assert len(topics.published) == 2


async def test_stored_messages_come_behind_those_that_wait(make_client, service, topics):
    async with make_client() as client, client.transaction() as tx:
        await tx.publish("ns/a", b"0")
        await tx.store("ns/a", [b"1", b"2"])
        await tx.publish("ns/a", b"3")
        assert topics.stored == [("a", 1001, [b"0", b"1", b"2"])]
    assert topics.stored[1:] == [("a", 1001, [b"3"])]
    assert topics.published == [("a", 1001, [])]


async def test_callers_at_the_same_time_keep_their_order(make_client, service, topics):
    async with make_client() as client, client.transaction(buffer_bytes_max=500) as tx:
        await asyncio.gather(*[tx.publish("ns/a", b"%02d" % n + bytes(200)) for n in range(20)])
    stored = [payload[:2] for _, _, found in topics.stored for payload in found]
    assert stored == [b"%02d" % n for n in range(20)]


async def test_a_failed_store_ends_the_transaction_even_if_the_caller_ignores_it(
    make_client, service, topics
):
    topics.cut = ["after"]
    async with make_client() as client:
        with pytest.raises(OutcomeUnknown):
            async with client.transaction() as tx:
                with suppress(OutcomeUnknown):
                    await tx.store("ns/a", b"0")
                with suppress(OutcomeUnknown):
                    await tx.publish("ns/a", b"1")
    assert (tx.state, topics.published) == ("aborted", [])


async def test_an_interrupted_store_ends_the_transaction_but_cancels_no_later_call(
    make_client, transport, service, topics
):
    async with make_client() as client:
        with pytest.raises(OutcomeUnknown, match="interrupted"):
            async with client.transaction() as tx:
                transport.gate = asyncio.Event()
                storing = asyncio.create_task(tx.store("ns/a", b"0"))
                await transport.arrived(2)
                storing.cancel()
                await asyncio.wait([storing])
                transport.gate = None
    assert (tx.state, topics.published) == ("aborted", [])


async def test_a_checkpoint_publishes_the_buffer_and_continues_under_another_pointer(
    make_client, service, topics
):
    async with make_client() as client, client.transaction() as tx:
        await tx.store("ns/a", b"0")
        further = await tx.checkpoint()
        assert (tx.snapshot, further.write_pointer) == (further, 1002)
        await tx.publish("ns/a", b"1")
    assert topics.stored == [("a", 1001, [b"0"])]
    assert topics.published == [("a", 1001, []), ("a", 1002, [b"1"])]
    assert service.rules.read_pointer == 1002


async def test_messages_that_are_stored_during_a_checkpoint_have_the_next_pointer(
    make_client, service, topics
):
    class Storing(Undoable):
        """Stores a message after the publisher has published, before it has its next pointer."""

        async def update_tx(self, transaction):
            await tx.store("ns/a", b"1")

    async with make_client() as client, client.transaction() as tx:
        await tx.add(Storing(lambda: None, lambda: True))
        await tx.store("ns/a", b"0")
        await tx.checkpoint()
    assert topics.stored == [("a", 1001, [b"0"]), ("a", 1002, [b"1"])]
    assert topics.published == [("a", 1001, []), ("a", 1002, [])]


async def test_ttls_keys_and_headers_are_sent(make_client, transport, service):
    async with make_client() as client, client.transaction() as tx:
        await tx.publish("ns/a", ["0", "1"], ttl_s=60)
        await tx.publish("ns/b", NewMessage("2", "k", {"h": "v"}, 5), ttl_s=60)
        await tx.publish("ns/b", "3", key="other", ttl_s=60)
    first, second = [r for r in transport.requests if "/publish" in r.path]
    assert first.path.endswith("?ttl=60")
    assert first.headers["Content-Type"] == avro.CONTENT_TYPE
    asked = messages.decode_publish_request(second.body, messages_max=10)
    assert (list(asked.ttls_s), "?" in second.path) == ([5, 60], False)
    assert len(set(asked.attributes)) == 2


# --- The block ------------------------------------------------------------------------------------


async def test_bad_messages_are_refused_where_they_are_given(make_client, service):
    async with make_client() as client, client.transaction() as tx:
        with pytest.raises(TypeError, match=r"messages\[1\]"):
            await tx.publish("ns/a", [b"0", 1])
        with pytest.raises(BadRequest):
            await tx.publish("ns/a", [])
    assert tx.state == "committed"


async def test_outside_its_block_a_transaction_refuses_calls(make_client, service):
    async with make_client() as client:
        tx = client.transaction()
        with pytest.raises(ValueError, match="begins with its block"):
            assert tx.id
        with pytest.raises(TransactionNotInProgress):
            await tx.publish("ns/a", b"0")
        async with tx:
            pass
        with pytest.raises(TransactionNotInProgress, match="committed"):
            await tx.publish("ns/a", b"0")
        with pytest.raises(ValueError, match="used once"):
            await tx.__aenter__()
    with pytest.raises(TypeError):
        client.transaction(7)


async def test_a_failed_checkpoint_ends_the_transaction_even_if_ignored(
    make_client, service, topics
):
    topics.cut = [Reply(404, {"broker-error": "topic_not_found"}, b"no")]
    with pytest.raises(TransactionNotInProgress):
        async with make_client() as client, client.transaction() as tx:
            await tx.publish("ns/a", b"0")
            with suppress(TopicNotFound):
                await tx.checkpoint()
    assert tx.state == "aborted"


async def test_a_poll_in_a_block_uses_the_transactions_snapshot(make_client, transport, service):
    async with make_client() as client, client.transaction() as tx:
        assert await tx.poll("ns/a", limit=5) == []
        seen = read_poll(avro, transport.requests[-1].body)
        assert (seen.snapshot, seen.limit) == (tx.snapshot, 5)


async def test_keys_conflict_and_participants_take_part(make_client, service):
    done = []
    pair = Undoable(lambda: done.append("do"), lambda: done.append("undo"))
    async with make_client() as client:
        with pytest.raises(TransactionConflict):
            async with client.transaction(aware=[pair]) as tx:
                tx.changes("account/7", b"\xff")
                async with client.transaction() as other:
                    other.changes(b"\xff")
    assert (tx.state, other.state) == ("aborted", "committed")
    assert done == []
    async with make_client() as client, client.transaction() as tx:
        await tx.add(pair)
    assert done == ["do"]


# --- Retried work ---------------------------------------------------------------------------------


async def conflicting(client, service, times, *, attempts_max=20):
    """Run work that conflicts ``times`` times. Return its transactions, and its result or its error."""
    seen = []

    async def work(tx):
        seen.append(tx)
        tx.changes(b"k")
        await tx.publish("ns/a", b"%d" % len(seen))
        if len(seen) <= times:
            async with client.transaction() as other:
                other.changes(b"k")
        return len(seen)

    try:
        return seen, await client.in_transaction(work, attempts_max=attempts_max)
    except TransactionConflict as error:
        return seen, error


async def test_a_conflict_is_retried_with_a_fresh_transaction(make_client, service, topics):
    async with make_client() as client:
        seen, result = await conflicting(client, service, 2)
    assert result == 3
    assert [tx.state for tx in seen] == ["aborted", "aborted", "committed"]
    assert topics.published == [("a", seen[2].id, [b"3"])]


async def test_retries_after_conflicts_are_bounded(make_client, service):
    async with make_client() as client:
        seen, result = await conflicting(client, service, 9, attempts_max=2)
    assert isinstance(result, TransactionConflict)
    assert result.__cause__ is not result
    assert len(seen) == 2


async def test_a_begin_that_is_refused_for_now_is_retried(make_client, service):
    refusal = Reply(503, {"broker-error": "no_leader"}, b"none leads")
    service.cut["start"] = [refusal] * 3
    async with make_client(retry_delay_min_s=1.0, retry_delay_max_s=1.0, deadline_s=0.01) as client:
        assert await client.in_transaction(answer) == "answer"
        service.cut["start"] = [refusal] * 3
        with pytest.raises(NoLeader):
            await client.in_transaction(answer, attempts_max=3)


async def answer(tx):
    return "answer"


async def test_an_unknown_outcome_of_the_work_is_not_retried(make_client, service, topics):
    tried = []

    async def work(tx):
        tried.append(tx)
        await tx.publish("ns/a", b"0")

    topics.cut = ["after"]
    async with make_client() as client:
        with pytest.raises(OutcomeUnknown):
            await client.in_transaction(work)
    assert [tx.state for tx in tried] == ["invalid"]


async def test_a_conflict_is_not_retried_after_an_incomplete_rollback(make_client, service):
    tried = []

    async def work(tx):
        tried.append(tx)
        tx.changes(b"k")
        async with client.transaction() as other:
            other.changes(b"k")

    pair = Undoable(lambda: True, lambda: False)
    pair.rollback_tx = lambda: False
    async with make_client() as client:
        with pytest.raises(TransactionConflict):
            await client.in_transaction(work, begin=lambda: client.transaction(aware=[pair]))
    assert [tx.state for tx in tried] == ["invalid"]
