"""The original's own server and ours give equal answers to the same requests, except for a list of differences."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.differences import Differences, differing, load
from tests.conformance.exchange import Connection
from tests.conformance.scenarios import SCENARIOS, Scenario
from tests.conformance.script import Exchange, Script
from tests.kit.openapi import Checker
from tests.kit.served import ServedNode
from tests.kit.servers import TmsServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

REQUESTS_MIN = 900
MINUTE_MS = 60_000
PATHS_OF_THE_ORIGINAL = {"paths_written_otherwise"}
"""Scenarios with paths outside our document: extra slashes, which the original ignores, and so do we."""

Transcripts = tuple[list[Exchange], list[Exchange]]


@pytest.fixture(scope="module")
def ours() -> Iterator[ServedNode]:
    with ServedNode() as node:
        yield node


@pytest.fixture(scope="module")
def differences() -> Differences:
    return load()


@pytest.fixture(scope="module")
def played(tms_server: TmsServer, ours: ServedNode) -> Mapping[str, Transcripts]:
    """Run every scenario at both servers, with the same write pointers, one minute old.

    Our answers must match our OpenAPI document.
    """
    pointer = (time.time_ns() // 1_000_000 - MINUTE_MS) * 1_000_000

    documented = Checker()

    def play(name: str, scenario: Scenario, port: int) -> list[Exchange]:
        checker = documented if port == ours.port and name not in PATHS_OF_THE_ORIGINAL else None
        with Connection("127.0.0.1", port, checker) as connection:
            script = Script(name, connection, pointer)
            scenario(script)
            script.end()
        return script.transcript

    def play_all(port: int) -> list[list[Exchange]]:
        return [play(name, scenario, port) for name, scenario in SCENARIOS.items()]

    with ThreadPoolExecutor() as pool:
        original, our = pool.map(play_all, (tms_server.port, ours.port))
    assert documented.checked >= REQUESTS_MIN
    return dict(zip(SCENARIOS, zip(original, our, strict=True), strict=True))


@pytest.mark.parametrize("name", SCENARIOS)
def test_answers_are_equal_except_for_listed_differences(
    name: str, played: Mapping[str, Transcripts], differences: Differences
) -> None:
    original, ours = played[name]
    assert [exchange.label for exchange in original] == [exchange.label for exchange in ours]
    unexplained = [
        f"{theirs.label}\n"
        + "\n".join(
            f"    {part}: {getattr(theirs.view, part)!r} <> {getattr(our.view, part)!r}"
            for part in differing(theirs.view, our.view)
        )
        for theirs, our in zip(original, ours, strict=True)
        if not differences.explain(f"{name}: {theirs.label}", theirs, our)
    ]
    assert not unexplained, "\n".join(["differences that are not listed:", *unexplained])
    wrong = [e.label for e in ours if e.expected is not None and e.expected != e.view.body]
    assert not wrong, f"our answers differ from the right ones: {wrong}"


def test_every_listed_difference_occurs(
    played: Mapping[str, Transcripts], differences: Differences
) -> None:
    for name, (original, ours) in played.items():
        for theirs, our in zip(original, ours, strict=False):
            differences.explain(f"{name}: {theirs.label}", theirs, our)
    assert not differences.unused()


def test_there_are_hundreds_of_requests(played: Mapping[str, Transcripts]) -> None:
    assert sum(len(ours) for _, ours in played.values()) >= REQUESTS_MIN


def test_no_answer_of_ours_is_a_server_error(played: Mapping[str, Transcripts]) -> None:
    errors = [e for _, ours in played.values() for e in ours if e.view.status >= 500]
    assert not errors
