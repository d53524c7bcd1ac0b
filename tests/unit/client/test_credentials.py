"""A client sends its token to the hosts that the caller configured, and to the members that it can trust."""

import asyncio
import contextlib
import pickle
import ssl
from pathlib import Path

import pytest

from broker.client import Client, Settings, SyncClient, TailOptions, protocol
from broker.client.credentials import MemberTrust, listed_members
from broker.client.transport import HttpTransport
from broker.errors import BrokerError, Unauthenticated
from broker.model import Message, PublishRequest, TopicId, log_key
from broker.secret import Secret
from tests.kit import poll_replies
from tests.unit.client.guard import Guard, write

TOPIC = TopicId("ns1", "t1")
PUBLISH = protocol.publish(TOPIC, PublishRequest(None, [b"a"]))
TLS = Path(__file__).parents[2] / "data" / "tls"
CANARY = "canary-4f9c"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    write(path, "old")
    return path


# --- The token -----------------------------------------------------------------------------------


async def test_each_request_has_the_token():
    async with Guard() as guard, Client(guard.url, token="new", coalesce=False) as client:
        await client.publish("t", b"a")
        guard.body = b"[]"
        await client.topics()
        assert guard.seen == ["bearer new"] * 2


async def test_a_refused_token_is_an_error_that_is_not_retried():
    async with Guard() as guard, Client(guard.url, token="wrong") as client:
        for call in (
            client.publish("t", b"a"),
            client.topics(),
            client.poll("t"),
            client.store("t", b"x", pointer=7),
        ):
            with pytest.raises(Unauthenticated) as refused:
                await call
            assert not refused.value.retriable
            assert "wrong" not in repr(refused.value)
        assert len(guard.seen) == 4


@pytest.mark.parametrize("closes", [False, True])
async def test_a_changed_file_is_read_when_a_server_refuses_its_token(token_file, closes):
    async with Guard() as guard, Client(guard.url, token_file=str(token_file)) as client:
        guard.renew, guard.closes, guard.body = lambda: write(token_file, "new"), closes, b"[]"
        assert await client.topics() == []
        assert guard.seen == ["bearer old", "bearer new"]
        guard.body = b""
        write(token_file, "unread")
        await client.publish("t", b"a")
        guard.valid, guard.renew = "newer", lambda: write(token_file, "newer")
        await client.publish("t", b"a")
        assert guard.seen[2:] == ["bearer new"] * 2 + ["bearer newer"]


async def test_a_file_is_read_once_for_a_request(token_file):
    async with Guard() as guard, Client(guard.url, token_file=str(token_file)) as client:
        guard.renew = lambda: write(token_file, f"wrong{len(guard.seen)}")
        with pytest.raises(Unauthenticated):
            await client.topics()
        assert guard.seen == ["bearer old", "bearer wrong1"]


async def test_all_requests_in_flight_are_sent_again_in_their_order(token_file):
    async with Guard() as guard:
        guard.renew = lambda: write(token_file, "new")
        transport = HttpTransport(Settings(url=guard.url, token_file=str(token_file)))
        connection = await transport.connect(TOPIC)
        replies = await asyncio.gather(*(connection.send(PUBLISH, 5) for _ in range(5)))
        assert [reply.status for reply in replies] == [200] * 5
        connection.close()
        await transport.close()


@pytest.mark.parametrize("closes", [False, True])
async def test_a_tail_goes_on_with_the_token_that_replaced_its_own(token_file, closes):
    async with Guard() as guard, Client(guard.url, token_file=str(token_file)) as client:
        guard.renew, guard.closes = lambda: write(token_file, "new"), closes
        guard.kind, guard.body = (
            "avro/message",
            poll_replies.page_of([Message(log_key(1, 0) + bytes(10), b"x")]) + b"\0",
        )
        async with contextlib.aclosing(
            client.tail("ns1/t1", options=TailOptions(wait_s=0))
        ) as read:
            assert (await anext(read)).payload == b"x"
        guard.valid = "another"
        with pytest.raises(Unauthenticated):
            await anext(client.tail("ns1/t1", options=TailOptions(wait_s=0)))


async def test_a_file_that_can_not_be_read_any_more_leaves_the_servers_error(token_file):
    async with Guard() as guard, Client(guard.url, token_file=str(token_file)) as client:
        guard.renew = lambda: token_file.chmod(0o644)
        with pytest.raises(Unauthenticated):
            await client.topics()


def test_a_client_is_not_made_with_a_file_that_others_can_read(token_file):
    token_file.chmod(0o644)
    with pytest.raises(ValueError, match=r"token_file: .*chmod 600"):
        HttpTransport(Settings(token_file=str(token_file)))
    with (
        pytest.raises(ValueError, match="chmod 600"),
        SyncClient(token_file=str(token_file)) as client,
    ):
        client.topics()


# --- Settings ------------------------------------------------------------------------------------


def test_settings_show_and_pickle_no_secret():
    plain = Settings(token_file="/run/token", headers=(("X-Who", "me"),))
    assert pickle.loads(pickle.dumps(plain)) == plain
    for secret in (
        Settings(token=CANARY),
        Settings(token=Secret(CANARY)),
        Settings(headers=(("Authorization", f"Basic {CANARY}"),)),
        Settings(headers=(("X-Api-Key", CANARY),)),
    ):
        assert CANARY not in repr(secret)
        assert "***" in repr(secret)
        with pytest.raises(TypeError, match="is not pickled"):
            pickle.dumps(secret)
        assert secret.changed(None, {"deadline_s": 5}).has_credentials


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"token": f"{CANARY}\r\nX: y"}, "visible ASCII"),
        ({"token": f"Bearer {CANARY}"}, "visible ASCII"),
        ({"token": CANARY, "token_file": "/run/token"}, "one of"),
        ({"token": CANARY, "headers": (("authorization", "x"),)}, "one of"),
        ({"headers": (("Authorization", f"{CANARY}\n"),)}, "line break"),
        ({"url": f"http://me:{CANARY}@h:1"}, "token_file"),
        ({"url": f"http:me:{CANARY}@h:1"}, "must look like"),
        ({"url": f"http://h:1?token={CANARY}"}, "must look like"),
        ({"trust_members": "http://b:1"}, "without scheme and port"),
    ],
)
def test_wrong_credentials_are_refused_and_not_shown(wrong, why):
    with pytest.raises(ValueError, match=why) as refused:
        Settings(**wrong)
    assert CANARY not in str(refused.value)


# --- The hosts -----------------------------------------------------------------------------------

A, B, C = "http://a.x:1", "http://b.x:1", "https://c.x:1"


@pytest.mark.parametrize(
    ("given", "listed", "source", "url", "allowed"),
    [
        ([A], "", A, A, True),
        ([A], "", A, B, False),
        ([A], "", A, "http://a.x:2", False),
        ([A, B], "", A, B, True),
        ([A, B], "", C, B, True),
        ([A], "b.x", A, B, True),
        ([A], "b.x", B, B, False),
        ([A], "*.x", A, B, True),
        ([A], "*.x", A, "http://evil.example:1", False),
        ([A], "*.x", A, "http://b.x.evil.example:1", False),
        ([A], "10.0.0.0/24", A, "http://10.0.0.7:1", True),
        ([A], "10.0.0.0/24", A, "http://10.0.1.7:1", False),
        ([A], "10.0.0.0/24", A, "http://[::1]:1", False),
        ([A], "::1", A, "http://[::1]:1", True),
        ([A], "", A, C, False),
        (["https://a.x:1"], "", "https://a.x:1", C, True),
        (["https://a.x:1"], "b.x", "https://a.x:1", B, False),
        (["https://a.x:1"], "", C, "https://evil.example:1", False),
    ],
)
def test_the_members_that_get_credentials(given, listed, source, url, allowed):
    trust = MemberTrust(given, listed_members(listed), by_certificate=True)
    assert trust.allows(source, url) is allowed
    if url.startswith("https") and not listed:
        assert not MemberTrust(given, (), by_certificate=False).allows(source, url)


@pytest.mark.parametrize(
    "credentials",
    [{"token": "new"}, {"headers": (("Authorization", "Bearer new"),)}],
    ids=["token", "header"],
)
async def test_a_broker_leader_that_names_another_host_never_gets_the_token(credentials):
    async with Guard() as other, Guard(leader=other.url) as guard:
        async with Client(guard.url, **credentials) as client:
            for _ in range(3):
                await client.publish("t", b"a")
        assert other.seen == []
        assert len(guard.seen) == 3
        async with Client(guard.url, trust_members="127.0.0.0/8", **credentials) as client:
            for _ in range(2):
                await client.publish("t", b"a")
        assert other.seen == ["bearer new"]


async def test_members_over_https_prove_themselves_by_a_certificate_of_the_callers_authority():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    ca_file = str(TLS / "cert.pem")
    member = await Guard().start(context)
    stranger = await Guard().start(context, "127.0.0.2")  # Its certificate is for 127.0.0.1.
    guard = await Guard().start(context)
    unchecked = ssl.create_default_context(cafile=ca_file)
    unchecked.check_hostname = False
    for leader, tls, reached in (
        (member, None, True),
        (stranger, None, False),
        (member, unchecked, False),
    ):
        guard.leader = leader.url
        options = {"ca_file": ca_file} if tls is None else {"tls": tls}
        async with Client(guard.url, token="new", **options) as client:
            for _ in range(3):
                await client.publish("t", b"a")
        assert bool(leader.seen) is reached
        leader.seen.clear()
    for each in (member, stranger, guard):
        await each.__aexit__()


async def test_without_credentials_leaders_are_followed_as_before():
    async with Guard() as other, Guard(leader=other.url) as guard, Client(guard.url) as client:
        guard.answer = lambda _: Guard.answer(guard, "bearer new")
        other.answer = lambda _: Guard.answer(other, "bearer new")
        await client.publish("t", b"a")
        await client.publish("t", b"a")
        assert other.seen == [None]


async def test_no_error_of_a_call_shows_the_token():
    async with Client("http://127.0.0.1:9", token=CANARY, deadline_s=0.1) as client:
        with pytest.raises(BrokerError) as failed:
            await client.publish("t", b"a")
    assert CANARY not in repr(failed.value)
