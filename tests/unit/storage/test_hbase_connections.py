"""Which gateway is asked, by how each has been answering."""

import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from broker.storage.cells import CellsRefused
from broker.storage.hbase_connections import Address, Connection, Connections, Timeouts
from tests.unit.storage.served_gateway import DEADLINE_S, serving

TIMEOUTS = Timeouts(call_s=5, connect_s=0.2, idle_s=30)
HERE = "127.0.0.1"


@pytest.fixture
def places() -> Iterator[list[Address]]:
    """Three places that take connections and say nothing."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((HERE, 0))) for _ in range(3)]
        yield [Address(HERE, server.getsockname()[1]) for server in servers]


@pytest.fixture
def connections(places: list[Address]) -> Iterator[Connections]:
    made = Connections(places, TIMEOUTS)
    yield made
    made.close()


def port_of(connection: Connection) -> int:
    return connection.gateway.address.port


def test_calls_go_where_the_fewest_are_under_way(
    connections: Connections, places: list[Address]
) -> None:
    taken = [connections.take() for _ in range(6)]
    assert sorted(map(port_of, taken)) == sorted([place.port for place in places] * 2)
    connections.give_back(taken[0], doubtful=False)
    again = connections.take()
    assert again is taken[0], "an idle connection of the least busy gateway"
    for connection in taken:
        connections.discard(connection, failed=False)


def test_one_that_failed_is_asked_no_more(connections: Connections) -> None:
    failed = connections.take()
    connections.discard(failed, failed=True)  # These places never answer a question.
    taken = [connections.take() for _ in range(10)]
    assert port_of(failed) not in map(port_of, taken)
    for connection in taken:
        connections.discard(connection, failed=True)
    with pytest.raises(CellsRefused):
        connections.take()


def test_what_is_idle_where_one_connection_failed_is_not_used(connections: Connections) -> None:
    taken = [connections.take() for _ in range(6)]
    one, other = (each for each in taken if port_of(each) == port_of(taken[0]))
    connections.give_back(one, doubtful=False)
    connections.discard(other, failed=True)
    assert one.socket.sock is None, "still open"
    for connection in taken:
        if port_of(connection) != port_of(one):
            connections.discard(connection, failed=False)


def test_one_that_tells_of_errors_is_not_preferred_for_a_moment(connections: Connections) -> None:
    doubtful = connections.take()
    connections.give_back(doubtful, doubtful=True)
    taken = [connections.take() for _ in range(4)]
    assert port_of(doubtful) not in map(port_of, taken)
    for connection in taken:
        connections.discard(connection, failed=False)


def test_one_that_answers_is_preferred_to_none() -> None:
    with serving() as served:
        connections = Connections([served.address], TIMEOUTS)
        connection = connections.take()
        connections.give_back(connection, doubtful=True)
        assert connections.take() is connection
        connections.discard(connection, failed=True)
        again = connections.take()  # Waits until it was asked, which it answers.
        assert again is not connection
        connections.discard(again, failed=False)
        connections.close()


def test_a_gateway_that_is_back_is_used_by_who_waits_for_it() -> None:
    with serving() as served:
        place = served.address
    connections = Connections([place], Timeouts(call_s=5, connect_s=20, idle_s=30))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connections.take)
        with serving(place.port):
            connections.discard(waiting.result(20), failed=False)
    connections.close()


@pytest.mark.parametrize("number", range(4))
def test_who_had_a_connection_made_finds_it_whosever_turn_it_is(number: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        addresses = [Address(*server.getsockname()) for server in (one, two)]
        connections = Connections(addresses, Timeouts(5.0, 5.0, 30.0))
        for _ in range(number):
            assert connections.take_ready() is None
        connections.add()
        found = connections.take_ready(anywhere=True)
        assert found is not None
        connections.give_back(found, doubtful=False)
        connections.close()


def test_who_takes_connections_only_to_end_them_is_asked_no_more() -> None:
    with socket.create_server((HERE, 0)) as server:
        server.settimeout(DEADLINE_S)
        connections = Connections([Address(HERE, server.getsockname()[1])], TIMEOUTS)
        connections.add()
        (gateway,) = connections._gateways
        (connection,) = gateway.idle
        server.accept()[0].close()
        assert select.select([connection.socket.sock], [], [], DEADLINE_S)[0]
        assert connections.take_ready() is None
        assert gateway.suspect
        with pytest.raises(CellsRefused):
            connections.add()
        connections.close()


def answer_in_html(server: socket.socket) -> None:
    """Answer one connection as what stands before a gateway that is away may do."""
    accepted, _ = server.accept()
    with accepted:
        accepted.settimeout(DEADLINE_S)
        accepted.recv(100)
        accepted.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


def test_a_gateway_in_whose_place_something_else_answered_is_asked_again() -> None:
    with socket.create_server((HERE, 0)) as server:
        server.settimeout(DEADLINE_S)
        place = Address(HERE, server.getsockname()[1])
        connections = Connections([place], Timeouts(call_s=5, connect_s=DEADLINE_S, idle_s=30))
        connections.discard(connections.take(), failed=True)
        server.accept()[0].close()  # That one; the next is the question whether it is well.
        answer_in_html(server)
    with serving(place.port):
        connections.discard(connections.take(), failed=False)
    connections.close()


def test_where_no_thread_can_ask_a_gateway_calls_do(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    failed = connections.take()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    connections.discard(failed, failed=True)
    monkeypatch.undo()
    assert not failed.gateway.suspect, "nobody would ever find that it is back"
