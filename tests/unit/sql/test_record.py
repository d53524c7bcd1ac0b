"""A session of SQLAlchemy decides a transaction: the order of its commits, and its end after failures."""

from contextlib import nullcontext, suppress

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, registry

from broker.client import (
    BodyTooLarge,
    NewMessage,
    OutcomeUnknown,
    ParticipantFailed,
    TopicNotFound,
    TransactionConflict,
    Undoable,
)
from broker.client.client_request import Reply
from broker.sql.record import SqlRecord
from tests.kit.garbage import no_cycle_through_a_traceback
from tests.unit.client.stand_in import LOST, OverHttp, Topics

# ruff: noqa: PT012, SIM117 - The tests need whole blocks.

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("number", Integer, primary_key=True))
RECORD = SqlRecord(METADATA)


class World:
    """Stubs of a service, topics and a database."""

    def __init__(self, client, service, topics, engine):
        self.client, self.service, self.topics, self.engine = client, service, topics, engine

    def block(self, session, **options):
        return self.client.transaction(aware=[RECORD.participant(session)], **options)

    def orders(self):
        with self.engine.connect() as connection:
            return list(connection.scalars(select(ORDERS)))

    def records(self):
        with self.engine.connect() as connection:
            return [record.transaction_id for record in RECORD.all(connection)]

    async def recover(self):
        return await RECORD.recover(self.client, self.engine)

    def time_out(self):
        for pointer in list(self.service.rules.in_progress):
            self.service.rules.invalidate(pointer)


SHORT = pytest.mark.parametrize("deadline_s", [0.02])
"""For tests in which the service never answers: the client soon ends its retries."""


@pytest.fixture
def deadline_s():
    return 20.0


@pytest.fixture
async def world(make_client, transport, database, deadline_s):
    topics = Topics()
    service = transport.answer = OverHttp(topics)
    engine = database.engine()
    METADATA.create_all(engine)
    async with make_client(deadline_s=deadline_s) as client:
        yield World(client, service, topics, engine)
    engine.dispose()


async def test_the_database_commits_behind_the_publisher_and_before_the_service(world):
    seen = []
    event.listen(world.engine, "commit", lambda _: seen.append(len(world.topics.published)))
    with Session(world.engine) as session:
        async with world.block(session) as tx:
            session.execute(insert(ORDERS), [{"number": 1}])
            await tx.publish("ns/a", b"0")
            event.listen(world.engine, "commit", lambda _: seen.append(list(world.service.calls)))
    assert seen[:2] == [1, ["start", "can_commit"]]
    assert world.service.calls == ["start", "can_commit", "commit"]
    assert (world.orders(), world.records(), tx.state) == ([1], [], "committed")


@pytest.mark.parametrize("how", ["the block", "a publish", "SQL", "the service"])
async def test_a_failure_before_the_decision_leaves_neither(world, how):
    error = {"a publish": TopicNotFound, "SQL": IntegrityError, "the service": TransactionConflict}
    if how == "a publish":
        world.topics.cut = [Reply(404, {"broker-error": "topic_not_found"}, b"no")]
    if how == "the service":
        world.service.cut["can_commit"] = [TransactionConflict("no")]
    with Session(world.engine) as session:
        with pytest.raises(error.get(how, KeyError)):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
                if how == "the block":
                    raise KeyError
                if how == "SQL":
                    session.execute(insert(ORDERS), [{"number": 1}])
    assert (world.orders(), world.records(), tx.state) == ([], [], "aborted")
    assert len(world.topics.published) == len(world.topics.rolled_back) == 0


async def test_an_error_of_the_flush_comes_before_anything_is_published(world):
    class Row:
        pass

    registry().map_imperatively(Row, ORDERS)
    with Session(world.engine) as session:
        session.execute(insert(ORDERS), [{"number": 1}])
        session.commit()
        with pytest.raises(IntegrityError):
            async with world.block(session) as tx:
                row = Row()
                row.number = 1
                session.add(row)
                await tx.publish("ns/a", b"0")
    assert (world.topics.published, tx.state) == ([], "aborted")


@SHORT
@pytest.mark.slow
async def test_from_the_decision_on_nothing_is_undone_and_recovery_commits(world):
    world.service.cut["commit"] = ["before"] * 1000
    world.service.cut["snapshot"] = [LOST] * 1000
    with Session(world.engine) as session:
        with pytest.raises(OutcomeUnknown, match="Recovery does the rest"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
    assert (tx.state, world.topics.rolled_back, world.records()) == ("decided", [], [tx.id])
    with pytest.raises(OutcomeUnknown, match=r"outcome .* is unknown"):
        await world.recover()
    assert world.records() == [tx.id]
    world.service.cut.clear()
    assert await world.recover() == (1, 0)
    assert (world.records(), len(world.service.rules.committed)) == ([], 1)
    assert len(world.topics.published) == 1


async def test_a_transaction_that_became_invalid_after_its_decision_is_published_again(
    world, database
):
    with Session(world.engine) as session:
        with pytest.raises(OutcomeUnknown, match="publishes its messages again"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", [b"0", NewMessage("1", "k", {"h": "v"}, 60)])
                await tx.publish("ns/b", b"2", ttl_s=30)
                event.listen(world.engine, "commit", lambda _: world.time_out())
    assert (tx.state, world.records()) == ("decided", [tx.id])
    world.time_out = lambda: None
    world.engine.dispose()
    first = world.topics.published.copy()
    engine = database.engine()
    assert await RECORD.recover(world.client, engine) == (0, 1)
    again = world.topics.published[len(first) :]
    assert [(topic, found) for topic, _, found in again] == [
        (topic, found) for topic, _, found in first
    ]
    assert {pointer for _, pointer, _ in again} == set(world.service.rules.in_progress) | {
        tx.id + 1
    }
    assert world.records() == []
    engine.dispose()


@SHORT
@pytest.mark.slow
async def test_keys_headers_and_lifetimes_are_in_the_record(world, transport):
    with Session(world.engine) as session:
        with suppress(OutcomeUnknown):
            async with world.block(session) as tx:
                await tx.publish("ns/a", [NewMessage("1", "k", {"h": "v"}, 60), b"2"])
                await tx.publish("ns/b", b"3", ttl_s=30)
                world.service.cut["commit"] = ["before"] * 1000
                world.service.cut["snapshot"] = [LOST] * 1000
    with world.engine.connect() as connection:
        found = dict(RECORD.published(connection, tx.id))
    assert found == {
        "ns/a": [NewMessage(b"1", b"k", {"h": b"v"}, 60), NewMessage(b"2")],
        "ns/b": [NewMessage(b"3", None, {}, 30)],
    }
    world.service.cut.clear()
    world.time_out()
    await world.recover()
    sent = [r for r in transport.requests if "/publish" in r.path]
    # The first three bytes have the write pointer, which is that of the recovery.
    assert [(r.path, r.body[3:]) for r in sent[:2]] == [(r.path, r.body[3:]) for r in sent[2:]]
    assert sent[0].headers == sent[2].headers


# --- The commit of the database -------------------------------------------------------------------


def failing(session, error, *, commits):
    """Let the next commit of a session raise, after it has committed or before."""
    commit = session.commit

    def fail():
        session.commit = commit
        if commits:
            commit()
        raise error

    session.commit = fail


LOCKED = OperationalError("COMMIT", {}, Exception("locked"))
GONE = OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)


@pytest.mark.parametrize("error", [LOCKED, GONE, ValueError("a hook of the session")])
async def test_a_commit_that_raised_and_has_committed_is_done(world, error):
    with Session(world.engine) as session:
        async with world.block(session) as tx:
            session.execute(insert(ORDERS), [{"number": 1}])
            await tx.publish("ns/a", b"0")
            failing(session, error, commits=True)
    assert (tx.state, world.orders(), world.records()) == ("committed", [1], [])


@pytest.mark.parametrize("error", [LOCKED, ValueError("a hook of the session")])
async def test_a_commit_that_raised_and_has_certainly_not_committed_is_undone(world, error):
    with Session(world.engine) as session:
        with pytest.raises(ParticipantFailed, match="did not commit"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
                failing(session, error, commits=False)
    assert (tx.state, world.orders(), len(world.topics.rolled_back)) == ("aborted", [], 1)


async def test_a_commit_over_a_broken_connection_undoes_nothing(world):
    """The record may still appear: then recovery publishes, and until then nothing is undone or aborted."""
    with Session(world.engine) as session:
        with pytest.raises(OutcomeUnknown, match="recovery decides by the record"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
                failing(session, GONE, commits=False)
    assert (tx.state, world.topics.rolled_back) == ("unknown", [])
    assert {"abort", "invalidate"}.isdisjoint(world.service.calls)


async def test_a_record_that_can_not_be_written_ends_the_transaction(world):
    RECORD.messages.drop(world.engine)
    with Session(world.engine) as session:
        with pytest.raises(ParticipantFailed, match="did not take the record"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
    assert (tx.state, world.orders(), len(world.topics.rolled_back)) == ("aborted", [], 1)


async def test_a_record_that_can_not_be_deleted_is_left_to_recovery(world, caplog):
    with Session(world.engine) as session:
        async with world.block(session) as tx:
            await tx.publish("ns/a", b"0")
            session.execute(insert(ORDERS), [{"number": 1}])

            def refuse(*_):
                raise OperationalError("DELETE", {}, Exception("locked"))

            event.listen(session, "after_commit", lambda _: setattr(RECORD, "forget", refuse))
    del RECORD.forget
    assert (tx.state, world.records()) == ("committed", [tx.id])
    assert "stays until recovery" in caplog.text
    assert await world.recover() == (1, 0)
    assert (world.records(), len(world.topics.published)) == ([], 1)


# --- Refused uses of a session --------------------------------------------------------------------


async def test_a_commit_inside_of_the_block_is_noticed(world):
    with Session(world.engine) as session:
        with pytest.raises(ParticipantFailed, match="committed inside"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                session.commit()
    assert tx.state == "invalid"
    assert tx.context.left == ["the SQL session"]


async def test_a_savepoint_is_no_commit(world):
    with Session(world.engine) as session:
        async with world.block(session) as tx:
            with session.begin_nested():
                session.execute(insert(ORDERS), [{"number": 1}])
    assert (tx.state, world.orders()) == ("committed", [1])


async def test_a_session_over_a_connection_is_refused(world):
    with world.engine.connect() as connection, Session(connection) as session:
        with pytest.raises(ValueError, match="bound to a connection"):
            async with world.block(session):
                pass


async def test_keys_of_changes_are_refused(world):
    with Session(world.engine) as session:
        with pytest.raises(ValueError, match="keys of changes"):
            async with world.block(session) as tx:
                tx.changes("k")
    assert tx.state == "aborted"


async def test_the_bound_of_the_buffer_is_that_of_the_transaction(world):
    with Session(world.engine) as session:
        async with world.block(session, buffer_bytes_max=1000) as tx:
            await tx.publish("ns/a", bytes(500))
            await tx.checkpoint()
            with pytest.raises(BodyTooLarge, match="buffer_bytes_max"):
                await tx.publish("ns/a", bytes(500))
            with pytest.raises(ValueError, match="can't be stored"):
                await tx.store("ns/a", b"x")
    assert (tx.state, world.topics.stored) == ("committed", [])


async def test_a_session_must_be_added_before_publishing(world):
    with Session(world.engine) as session:
        for method in ("store", "checkpoint"):
            async with world.client.transaction() as tx:
                await tx.publish("ns/a", b"0")
                await (tx.store("ns/a", b"x") if method == "store" else tx.checkpoint())
                with pytest.raises(ValueError, match="Add the SQL session first"):
                    await tx.add(RECORD.participant(session))


async def test_one_session_decides(world):
    with Session(world.engine) as one, Session(world.engine) as other:
        async with world.block(one, buffer_bytes_max=100) as tx:
            await tx.add(Undoable(lambda: True, lambda: True))
            with pytest.raises(ValueError, match="one already"):
                await tx.add(RECORD.participant(other))


# --- asyncio --------------------------------------------------------------------------------------


@SHORT
@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
async def test_a_session_for_asyncio_decides_as_well(world, database, fails):
    pytest.importorskip("greenlet", reason="SQLAlchemy needs it for asyncio")
    pytest.importorskip("aiosqlite")
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - It imports greenlet.

    engine = database.async_engine()
    async with AsyncSession(engine) as session:
        with suppress(KeyError):
            async with world.block(session) as tx:
                await session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
                if fails:
                    raise KeyError
    assert tx.state == ("aborted" if fails else "committed")
    assert (world.orders(), world.records()) == ([] if fails else [1], [])
    async with AsyncSession(engine) as session:
        world.service.cut["commit"] = ["before"] * 1000
        world.service.cut["snapshot"] = [LOST] * 1000
        with pytest.raises(OutcomeUnknown):
            async with world.block(session) as tx:
                await tx.publish("ns/a", b"1")
    world.service.cut.clear()
    world.time_out()
    assert await RECORD.recover(world.client, engine) == (0, 1)
    await engine.dispose()


@pytest.mark.parametrize("error", [TimeoutError(), OSError("cut"), RuntimeError("driver")])
async def test_a_failure_after_the_commit_is_told_as_committed(world, monkeypatch, caplog, error):
    """asyncpg raises a TimeoutError of its own, which SQLAlchemy passes on."""

    def fails(*_):
        raise error

    monkeypatch.setattr(RECORD, "forget", fails)
    with Session(world.engine) as session:
        async with world.block(session) as tx:
            session.execute(insert(ORDERS), [{"number": 1}])
            await tx.publish("ns/t", "x")
    assert (tx.state, world.orders(), world.records()) == ("committed", [1], [tx.id])
    assert f"transaction {tx.id} is committed" in caplog.text
    monkeypatch.undo()
    assert await world.recover() == (1, 0)


async def test_a_recovery_goes_on_after_an_error_that_sqlalchemy_passes_on(world, monkeypatch):
    with Session(world.engine) as session:
        monkeypatch.setattr(RECORD, "forget", lambda *_: (_ for _ in ()).throw(TimeoutError()))
        async with world.block(session):
            session.execute(insert(ORDERS), [{"number": 1}])
    with pytest.raises(OutcomeUnknown, match="1 records stay"):
        await world.recover()
    monkeypatch.undo()
    assert await world.recover() == (1, 0)


@SHORT
async def test_a_commit_that_times_out_is_unknown(world, monkeypatch):
    """The server may still be at it, so nothing is undone."""

    def times_out():
        raise TimeoutError

    with Session(world.engine) as session:
        monkeypatch.setattr(session, "commit", times_out)
        with pytest.raises(OutcomeUnknown):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/t", "x")
    assert tx.state == "unknown"
    assert tx.id in world.service.rules.in_progress


async def test_a_listener_that_fails_before_the_commit_ends_the_transaction(world):
    """The statement of the record never reached the database, so nothing is decided, and no reader waits."""

    def refuse(_connection, _cursor, statement, *_):
        if statement.startswith(f"INSERT INTO {RECORD.decisions.name}"):
            raise ValueError("a listener of the program")

    event.listen(world.engine, "before_cursor_execute", refuse)
    with Session(world.engine) as session:
        with pytest.raises(ParticipantFailed, match="a listener of the program"):
            async with world.block(session) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish("ns/a", b"0")
    assert (tx.state, world.orders(), len(world.topics.rolled_back)) == ("aborted", [], 1)


async def decided(world, monkeypatch, *bodies):
    """Commit transactions whose records stay; return their numbers."""
    ids = []
    with monkeypatch.context() as patch, Session(world.engine) as session:
        patch.setattr(RECORD, "forget", lambda *_: (_ for _ in ()).throw(TimeoutError()))
        for body in bodies:
            async with world.block(session) as tx:
                await tx.publish("ns/a", body)
            ids.append(tx.id)
    return ids


def damage(world, number):
    row = {"number": number, "place": -1, "topic": "pointers", "body": b"[1"}
    with world.engine.begin() as connection:
        connection.execute(insert(RECORD.messages), [row])


async def test_a_damaged_record_does_not_hold_up_others(world, monkeypatch):
    ids = await decided(world, monkeypatch, b"0", b"1")
    damage(world, ids[0])
    with pytest.raises(OutcomeUnknown, match=f"1 records stay .* transaction {ids[0]}"):
        await world.recover()
    assert world.records() == ids[:1]


@SHORT
async def test_an_unknown_outcome_leaves_no_cycle(world, monkeypatch):
    """A traceback keeps its frames, and these the messages."""
    damage(world, *await decided(world, monkeypatch, bytes(10_000)))
    for looked in (nullcontext, no_cycle_through_a_traceback):
        with looked(), pytest.raises(OutcomeUnknown):
            await world.recover()

    def times_out():
        raise TimeoutError

    for looked in (nullcontext, no_cycle_through_a_traceback):
        with looked(), Session(world.engine) as session, pytest.raises(OutcomeUnknown):
            session.commit = times_out
            async with world.block(session) as tx:
                await tx.publish("ns/a", bytes(10_000))
