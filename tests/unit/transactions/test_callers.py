"""One caller of the transaction service can't take all places."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from broker.api.router import Handler
from broker.api.transactions import service_handlers
from broker.errors import Overloaded
from broker.http.reply import Reply
from broker.http.request import PathNames, Request
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from tests.kit.bench import Bench


@pytest.fixture
def api(bench: Bench) -> dict[str, Handler]:
    settings = TransactionSettings(in_progress_max=8)
    return service_handlers(Transactions(bench.topics.leaders, settings))


def asked(caller: str, transaction: str = "", **sent: Any) -> Request:
    return Request(
        "POST",
        "/v1/transactions",
        "",
        CIMultiDict(),
        orjson.dumps(sent),
        names=PathNames(transaction=transaction),
        caller=caller,
    )


async def start(api: dict[str, Handler], caller: str, **sent: Any) -> str:
    reply = await api["start_transaction"](asked(caller, **sent))
    assert isinstance(reply, Reply)
    return str(orjson.loads(reply.body)["transaction_id"])


@pytest.mark.parametrize(
    ("addresses", "other"),
    [
        (["10.0.0.1"], "10.0.0.2"),
        ([f"2001:db8::{last}" for last in range(1, 7)], "2001:db8:1::1"),
    ],
)
async def test_one_caller_leaves_a_quarter_to_others(
    api: dict[str, Handler], addresses: list[str], other: str
) -> None:
    begun = [await start(api, addresses[at % len(addresses)]) for at in range(6)]
    with pytest.raises(Overloaded, match="of this caller"):
        await start(api, addresses[0])
    with pytest.raises(Overloaded, match="of this caller"):
        await api["checkpoint_transaction"](asked(addresses[0], begun[0]))
    await start(api, other)
    await api["commit_transaction"](asked(addresses[0], begun[0]))
    await start(api, addresses[0])


async def test_checkpoints_of_one_transaction_count(api: dict[str, Handler]) -> None:
    (begun,) = [await start(api, "10.0.0.1")]
    for _ in range(5):
        await api["checkpoint_transaction"](asked("10.0.0.1", begun))
    with pytest.raises(Overloaded, match="of this caller"):
        await api["checkpoint_transaction"](asked("10.0.0.1", begun))
    assert await start(api, "10.0.0.2")


async def test_two_callers_that_take_all_they_may_leave_places_to_a_third(bench: Bench) -> None:
    """They had three quarters and one quarter: a third caller was refused."""
    settings = TransactionSettings(in_progress_max=60)
    api = service_handlers(Transactions(bench.topics.leaders, settings))
    for caller, places in (("10.0.0.1", 45), ("10.0.0.2", 12)):
        for _ in range(places):
            await start(api, caller)
        with pytest.raises(Overloaded, match="of this caller"):
            await start(api, caller)
    await start(api, "10.0.0.3")


async def test_a_caller_of_long_transactions_leaves_long_ones_to_others(bench: Bench) -> None:
    settings = TransactionSettings(in_progress_max=60)
    api = service_handlers(Transactions(bench.topics.leaders, settings))
    for _ in range(34):
        await start(api, "10.0.0.1", type="long")
    with pytest.raises(Overloaded, match="of this caller"):
        await start(api, "10.0.0.1", type="long")
    await start(api, "10.0.0.2", type="long")
