"""A leader knows a caller by the signature of the node that forwards, and never by credentials."""

from __future__ import annotations

from typing import Final

from broker.access.access_records import AccessRecords
from broker.access.grants import Grant
from broker.config.sections import AccessConfig, AccessMode
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import topic_path

ACCESS: Final = AccessConfig(access_mode=AccessMode.REQUIRED)
KNOWN_S: Final = 2.0
"""Within this every node knows a change of access."""
SECRETS: Final = ("Authorization", "Cookie")


async def credentials(cluster: HttpCluster, who: str, role: str, pattern: str) -> dict[str, str]:
    """Return the credentials of a caller that every node knows."""
    records = AccessRecords(cluster.sim.records, cluster.sim.clock)
    token, _ = await records.create_token(who)
    await records.grant(Grant(who, role, pattern))
    await cluster.sim.clock.sleep(KNOWN_S)
    return {"Authorization": f"Bearer {token}", "Cookie": "a=b"}


@on_cluster(topic=False, access=ACCESS)
async def test_credentials_stay_at_the_node_that_forwards(cluster: HttpCluster) -> None:
    admin = await credentials(cluster, "ann", "admin", "*")
    await cluster.lead_all(0)
    assert (await cluster(1, "PUT", topic_path("t"), headers=admin)).status == 200
    assert (await cluster.publish(1, "a", **admin)).status == 200
    reply = await cluster(1, "POST", "/v1/transactions", b"", admin)
    assert reply.status == 200
    sent = cluster.forwarded(by=1)
    assert sent
    assert not [each for each in sent if any(name in each.headers for name in SECRETS)]
    assert {each.headers["Broker-Principal"] for each in sent} == {"ann"}


@on_cluster(topic=False, access=ACCESS)
async def test_nodes_ask_each_other_where_callers_need_credentials(cluster: HttpCluster) -> None:
    admin = await credentials(cluster, "ann", "admin", "*")
    reply = await cluster(1, "GET", "/v1/cluster", headers=admin)
    assert [row["problem"] for row in reply.json["nodes"]] == [None] * 3


@on_cluster(topic=False, access=ACCESS)
async def test_a_forwarded_caller_is_no_more_than_at_the_leader(cluster: HttpCluster) -> None:
    admin = await credentials(cluster, "ann", "admin", "*")
    reader = await credentials(cluster, "bob", "reader", "*")
    await cluster.lead_all(0)
    assert (await cluster(1, "PUT", topic_path("t"), headers=admin)).status == 200
    for node in (0, 1):
        assert (await cluster.publish(node, "a", **reader)).status == 403
        forged = {**reader, "Broker-Principal": "ann"}
        assert (await cluster.publish(node, "a", **forged)).status == 403
