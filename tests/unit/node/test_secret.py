import pytest

from broker.clock import SystemClock
from broker.errors import OutcomeUnknown, StorageCorrupt, Unavailable
from broker.node.ground import SECRET_KEY, cluster_secret
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualClock, VirtualLoop, simulate


async def test_all_nodes_get_the_secret_that_the_first_one_made() -> None:
    records = MemoryRecords()
    first = await cluster_secret(records, SystemClock())
    assert len(first) == 64
    assert await cluster_secret(records, SystemClock()) == first
    assert await cluster_secret(MemoryRecords(), SystemClock()) != first


async def test_a_node_that_is_second_takes_the_secret_of_the_first() -> None:
    class Overtaken(MemoryRecords):
        async def put_if(self, key, expected, value):
            await super().put_if(key, expected, b"7" * 64)
            return await super().put_if(key, expected, value)

    assert await cluster_secret(Overtaken(), SystemClock()) == "7" * 64


@pytest.mark.parametrize("was_put", [True, False])
def test_an_unknown_outcome_is_resolved_by_reading(was_put: bool) -> None:
    class Flaky(MemoryRecords):
        failures = 1

        async def put_if(self, key, expected, value):
            if was_put or not self.failures:
                await super().put_if(key, expected, value)
            if self.failures:
                self.failures -= 1
                raise OutcomeUnknown("cut")

    async def main(loop: VirtualLoop) -> None:
        records = Flaky()
        secret = await cluster_secret(records, VirtualClock(loop))
        found = await records.get(SECRET_KEY)
        assert found is not None
        assert found.value == secret.encode()

    simulate(main)


def test_outcomes_that_stay_unknown_make_the_secret_unavailable() -> None:
    class Lost(MemoryRecords):
        async def put_if(self, key, expected, value):
            raise OutcomeUnknown("cut")

    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(Unavailable):
            await cluster_secret(Lost(), VirtualClock(loop))

    simulate(main)


async def test_a_record_that_is_no_secret_is_corrupt() -> None:
    records = MemoryRecords()
    await records.put_if(SECRET_KEY, None, b"hello")
    with pytest.raises(StorageCorrupt):
        await cluster_secret(records, SystemClock())
