import asyncio

import pytest

from chaos.checkers import check
from chaos.workloads import Scale
from chaos.workloads.log import LogWorkload
from chaos.workloads.real import RealSurroundings
from tests.kit.serving import Broker, eventually, listening

SMALL = Scale(publishers=6, pause_s=0.005, wait_s=0.2, again_s=0.01, padded=True)
LINES = 500


@pytest.mark.slow
async def test_a_workload_in_real_time_over_sockets():
    broker, workload, stop = Broker(), LogWorkload(), asyncio.Event()
    async with listening(broker) as http:
        nodes = [http.url, http.url.replace("127.0.0.1", "localhost")]
        around = RealSurroundings(nodes, seed=1, scale=SMALL)
        await workload.prepare(around)
        running = asyncio.create_task(workload.run(around, stop))
        lines = around.history.events
        await eventually(
            lambda: running.done() or len(lines) > LINES, lambda: f"{len(lines)} lines"
        )
        stop.set()
        await running
        await workload.finish(around)
    await broker.close()
    verdict = check(around.history.calls())
    assert verdict.is_valid, verdict
