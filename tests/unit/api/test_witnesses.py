"""The clocks of other nodes."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.api.cluster import CLOCK_S_MAX, CLOCKS_MAX, clocks_of
from broker.coordination.claims import Written
from broker.coordination.ports import NodeInfo
from broker.errors import Unavailable
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate

NODES = [NodeInfo(number, "life", f"http://node-{number}", "1.0", 1) for number in range(1, 20)]


def clocks(answers: dict[str, object], nodes: list[NodeInfo] = NODES) -> list[Written]:
    """Ask nodes that answer after 10 ms: with the bytes or the error of ``answers``, or never (None)."""

    async def main(loop: VirtualLoop) -> list[Written]:
        clock = VirtualClock(loop)

        async def ask(url: str, _: float) -> bytes:
            await pass_time(0.01)
            answer = answers.get(url, json.dumps({"node": 0}).encode())
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, bytes)
            return answer

        found = list(await clocks_of(nodes, ask, clock))
        assert loop.time() <= CLOCK_S_MAX
        return found

    return simulate(main)


def view(number: int, **fields: object) -> bytes:
    return json.dumps({"node": number, **fields}).encode()


def test_nodes_that_answer_are_witnesses() -> None:
    found = clocks({NODES[0].url: view(1, now_ms=1_600_000_000_000 - 3000)}, NODES[:1])
    (written,) = found
    assert written.ahead_ms == 3000


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Unavailable("no answer"),
        OSError("cut"),
        b"",
        b"[1]",
        view(7, now_ms=1),
        view(1),
        view(1, now_ms="1"),
    ],
)
def test_an_implausible_answer_is_no_witness(answer: object) -> None:
    assert clocks({NODES[0].url: answer}, NODES[:2]) == []


def test_the_number_of_asked_nodes_is_bounded() -> None:
    answers: dict[str, object] = {node.url: view(node.instance, now_ms=1) for node in NODES}
    assert len(clocks(answers)) == CLOCKS_MAX
