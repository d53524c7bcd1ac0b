"""Grants, tokens and the gate: all is denied that no grant allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.access_records import AccessRecords
from broker.access.gate import RequiredGate
from broker.access.grants import ROLES, Grant, Grants, checked_grant
from broker.access.tokens import id_of, new_token
from broker.clock import SystemClock
from broker.errors import BadRequest, Forbidden, NotFound, TopicNotFound, Unauthenticated
from broker.http.request import NO_NAMES, PathNames
from broker.model import TopicId
from broker.operations.operation import RIGHTS, Action
from broker.principal import ANYONE, NOWHERE, Principal
from tests.kit.serving import Broker, in_memory

TOPIC = TopicId("audit", "logins")
AT_TOPIC = PathNames("audit", TOPIC)
ann = Principal("ann", frozenset({"ops"}))


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("*", True),
        ("audit/*", True),
        ("audit/logins", True),
        ("audit/login", False),
        ("audi/*", False),
        ("other/logins", False),
    ],
)
def test_a_pattern_names_topics(pattern: str, covered: bool) -> None:
    assert Grant("ann", "reader", pattern).covers(TOPIC) is covered


@given(st.sampled_from(list(Action)), st.sampled_from(list(ROLES)))
def test_only_the_actions_of_a_role_are_allowed(action: Action, role: str) -> None:
    grants = Grants([Grant("ann", role)])
    assert (grants.decide(ann, action, TOPIC) is not None) is (action in ROLES[role])
    assert grants.decide(Principal("bob"), action, TOPIC) is None
    assert grants.decide(ANYONE, action, TOPIC) is None


def test_each_role_can_be_granted() -> None:
    assert [*ROLES, *Action] == RIGHTS


def test_a_group_has_grants_too() -> None:
    grants = Grants([Grant("group:ops", "reader", "audit/*")])
    assert grants.decide(ann, Action.CONSUME, TOPIC) == Grant("group:ops", "reader", "audit/*")
    assert grants.decide(Principal("ops"), Action.CONSUME, TOPIC) is None
    assert grants.decide(Principal("group:ops"), Action.PUBLISH, TOPIC) is None


def test_a_grant_for_one_topic_allows_nothing_of_the_whole_broker() -> None:
    grants = Grants([Grant("ann", "admin", "audit/*")])
    allowed = {action for action in Action if grants.decide(ann, action, None)}
    assert allowed == {Action.TRANSACTIONS}


@pytest.mark.parametrize(
    ("who", "what", "pattern"),
    [
        ("", "reader", "*"),
        ("a b", "reader", "*"),
        ("*node", "admin", "*"),
        ("ann", "king", "*"),
        ("ann", "reader", "**"),
        ("ann", "reader", "audit"),
        ("ann", "reader", "*/logins"),
        ("ann", "reader", "audit/log*"),
    ],
)
def test_a_wrong_grant_is_refused(who: str, what: str, pattern: str) -> None:
    with pytest.raises(BadRequest):
        checked_grant(who, what, pattern)


def test_a_token_is_valid_until_it_expires() -> None:
    text, token = new_token("ann", 1000, 500)
    assert text.startswith(f"tms_{token.id}_")
    assert text not in repr(token)
    assert id_of(text) == token.id
    assert token.is_valid(text, 1499)
    assert not token.is_valid(text, 1500)
    assert not token.is_valid(text[:-1] + "~", 1499)
    assert id_of(text + "x") is None


async def test_the_gate_knows_tokens_and_grants() -> None:
    clock = SystemClock()
    _, records = in_memory(clock)
    access = AccessRecords(records, clock)
    await access.open()
    gate = RequiredGate(access.rules, clock.now_ms)
    text, token = await access.create_token("ann")
    headers = {"Authorization": f"Bearer {text}"}
    principal = gate.identify(headers, NOWHERE)
    assert principal == Principal("ann")
    with pytest.raises(TopicNotFound):  # It learns nothing of a topic in which it has no right.
        gate.authorize(principal, Action.CONSUME, AT_TOPIC)
    grant = Grant("ann", "reader", "audit/*")
    assert await access.grant(grant)
    assert not await access.grant(grant)
    gate.authorize(principal, Action.CONSUME, AT_TOPIC)
    for action, names in ((Action.PUBLISH, AT_TOPIC), (Action.ACCESS, NO_NAMES)):
        with pytest.raises(Forbidden):
            gate.authorize(principal, action, names)
    with pytest.raises(Unauthenticated):
        gate.authorize(ANYONE, Action.CONSUME, AT_TOPIC)
    gate.authorize(ANYONE, Action.HEALTH, NO_NAMES)
    assert await access.revoke(grant)
    with pytest.raises(TopicNotFound):
        gate.authorize(principal, Action.CONSUME, AT_TOPIC)
    assert (await access.revoke_token(token.id)).principal == "ann"
    with pytest.raises(Unauthenticated):
        gate.identify(headers, NOWHERE)
    with pytest.raises(NotFound):
        await access.revoke_token(token.id)
    await access.close()


async def test_a_request_needs_credentials_before_its_body_is_read() -> None:
    clock = SystemClock()
    _, records = in_memory(clock)
    access = AccessRecords(records, clock)
    await access.open()
    broker = Broker(gate=RequiredGate(access.rules, clock.now_ms))
    text, _ = await access.create_token("ann")
    await access.grant(Grant("ann", "owner", "default/*"))
    path = "/v1/namespaces/default/topics/t"
    refused = await broker.ask("PUT", path)
    assert (refused.status, refused.headers["Broker-Error"]) == (401, "unauthenticated")
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="broker"'
    wrong = await broker.ask("PUT", path, headers={"Authorization": "Bearer tms_x"})
    assert wrong.status == 401
    done = await broker.ask("PUT", path, headers={"Authorization": f"bearer {text}"})
    assert done.status == 200
    assert (await broker.ask("GET", "/ping")).status == 200
    await access.close()
    await broker.close()
