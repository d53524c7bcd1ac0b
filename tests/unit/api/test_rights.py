"""Every operation x every kind of caller has the answer that the table says, on a node alone.

The table is written by hand: it is what a reader of the documentation expects, not what the roles in the code make of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from multidict import CIMultiDict

from broker.access.access_records import AccessRecords
from broker.access.gate import RequiredGate
from broker.access.grants import Grant
from broker.clock import SystemClock
from broker.http.reply import Reply
from broker.operations.table import OPERATIONS
from tests.kit.serving import Broker, in_memory

CALLERS = ("other", "reader", "writer", "owner", "operator", "admin")
"""The principals; ``other`` owns another namespace. The first four have their role in one namespace, the others in all."""
REFUSALS = {"unauthenticated": "U", "forbidden": "F", "topic_not_found": "H"}
ANSWERS = {
    # One letter for each of CALLERS: Y allowed, F forbidden, H as if the topic did not exist.
    "HFFYFY": "create_topic update_topic delete_topic purge",
    "HYYYYY": "show_topic leader",
    "HFYYFY": "publish store rollback begin_stage publish_stages store_staged",
    "HYFYFY": "poll arrow arrow_as events browse browse_as stats lag range blockers "
    "cursors show_cursor put_cursor delete_cursor",
    "YFYYYY": "start_transaction transactions_snapshot show_transaction can_commit_transaction "
    "commit_transaction abort_transaction invalidate_transaction checkpoint_transaction",
    "FFFFYY": "list_transactions truncate_transactions prune_plan prune_transactions reset_transactions "
    "cluster cluster_node drain undrain pins pin unpin metrics",
    "FFFFFY": "create_token tokens revoke_token grant grants revoke_grant decide "
    "quotas put_quota delete_quota",
    "YYYYYY": "list_topics namespaces ping service_status healthz readyz product openapi",
}
EXPECTED = {name: letters for letters, names in ANSWERS.items() for name in names.split()}
FOR_ALL = {"ping", "service_status", "healthz", "readyz", "product", "openapi"}
"""The operations that need no credentials."""
DECLARED = {each.name: each for each in OPERATIONS}


def test_every_operation_has_a_row() -> None:
    assert set(EXPECTED) == set(DECLARED)


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[Broker, dict[str, str]]]:
    """Yield a broker that asks for credentials, and the token of each caller."""
    clock = SystemClock()
    stores = in_memory(clock)
    access = AccessRecords(stores[1], clock)
    await access.open()
    tokens = {"expired": (await access.create_token("admin", 0))[0]}
    for name in CALLERS:
        tokens[name] = (await access.create_token(name))[0]
        pattern = "*" if name in ("operator", "admin") else "default/*"
        grant = Grant("other", "owner", "elsewhere/*") if name == "other" else None
        await access.grant(grant or Grant(name, name, pattern))
    tokens["wrong"] = tokens["admin"][:-1] + ("A" if tokens["admin"][-1] != "A" else "B")
    broker = Broker(stores=stores, gate=RequiredGate(access.rules, clock.now_ms))
    try:
        yield broker, tokens
    finally:
        await access.close()
        await broker.close()


async def letter(broker: Broker, method: str, path: str, token: str | None) -> str:
    """Return the letter of the answer to a request without a body."""
    given = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = await broker.answer(method, path, CIMultiDict(given))
    if not isinstance(answer, Reply):
        await answer.chunks.aclose()
    return REFUSALS.get(dict(answer.headers).get("Broker-Error", ""), "Y")


@pytest.mark.parametrize("name", DECLARED)
async def test_each_caller_gets_the_answer_of_the_table(name: str) -> None:
    declared = DECLARED[name]
    path = declared.template.format(
        namespace="default",
        topic="t",
        stage="1",
        cursor="c",
        transaction="1",
        node="7",
        token="0123456789abcdef",
        who="nobody",
        service="messaging.service",
    )
    topic = "/v1/namespaces/default/topics/t"
    async with guarded() as (broker, tokens):
        found = ""
        for caller in CALLERS:
            if name != "create_topic":
                await letter(broker, "PUT", topic, tokens["admin"])
            found += await letter(broker, declared.method, path, tokens[caller])
        assert found == EXPECTED[name], f"{dict(zip(CALLERS, found, strict=True))}"
        nameless = await letter(broker, declared.method, path, None)
        assert nameless == ("Y" if name in FOR_ALL else "U")
        for wrong in ("wrong", "expired"):
            assert await letter(broker, declared.method, path, tokens[wrong]) == "U", wrong
