from collections.abc import AsyncIterator

import pytest

from tests.kit.ring import Ring, ring_of
from tests.kit.serving import topic_path


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    """Three nodes that listen, with a topic ``t``, led by the first."""
    async with ring_of(3) as ring:
        assert (await ring.nodes[0].http("PUT", topic_path("t"))).status == 200
        yield ring
