"""The verifier's clients of a given cluster have its token."""

from chaos.given_cluster import GivenTarget
from tests.unit.client.guard import Guard, write


async def test_each_client_of_a_given_cluster_has_the_token(tmp_path):
    write(tmp_path / "token", "new")
    async with Guard() as guard:
        target = GivenTarget([guard.url], token_file=str(tmp_path / "token"))
        guard.body = b"[]"
        async with target.client(node="broker-1") as client:
            await client.topics()
        assert guard.seen == ["bearer new"]
