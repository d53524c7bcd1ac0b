"""Schemathesis makes requests from the OpenAPI document only, and checks our answers.

Each operation gets requests that the document allows, and requests that it does not. Every answer must match the
document, and none may be a server error. Avro bodies are mutants of valid bodies.
"""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from broker.api.openapi import make_document
from broker.clock import SystemClock
from broker.config.sections import Config, LimitsConfig, TransactionsConfig
from broker.operations.table import BY_NAME
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from tests.kit.members import FewNodes
from tests.kit.mutations import AVRO, AVRO_JSON, mutants
from tests.kit.openapi import Answered, Checker
from tests.kit.serving import Broker, topic_path

EXAMPLES = 15
ENDLESS = {"events"}
"""Streams, which do not end by themselves. They have their own tests."""
NOTHING_TO_GET_WRONG = {
    "healthz",
    "metrics",
    "namespaces",
    "openapi",
    "ping",
    "product",
    "pins",
    "grants",
    "quotas",
    "tokens",
    "readyz",
    "service_status",
}
"""Operations without parameters, or with a parameter that may have any value."""
NEEDS_KNOWLEDGE = {
    "arrow",
    "arrow_as",
    "blockers",
    "publish_stages",
    "store_staged",
    "browse_as",
    "can_commit_transaction",
    "checkpoint_transaction",
    "commit_transaction",
    "delete_topic",
    "pin",
    "purge",
    "revoke_token",
    "rollback",
    "show_cursor",
    "show_transaction",
    "store",
}
"""Operations that need values which no document can give: a live transaction, a snapshot's bytes, a topic, a token, a node."""
KNOWN = {"namespace": "default", "topic": "t", "node": "1"}
CHECKS = [
    allow_header_conformance,
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
OF_CONTENT = (content_type_conformance, response_schema_conformance)
CHECKS_OF_NOTHING = [check for check in CHECKS if check not in OF_CONTENT]
"""Checks for an empty answer, which has no content type. The document can't say that if a status also has full answers."""

BODIES = [mutant.body for mutant in mutants(7, 2000) if mutant.target.content_type == AVRO]
schemathesis.openapi.media_type(AVRO, st.sampled_from(BODIES) | st.binary(max_size=60))
schemathesis.serializer.alias(AVRO_JSON, "application/json")
schemathesis.openapi.media_type("application/octet-stream", st.binary(max_size=60))
SCHEMA = schemathesis.openapi.from_dict(make_document())
OPERATION_NAMES = sorted(set(BY_NAME) - ENDLESS)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A broker in its own thread, with topics of the names that the tool is likely to try."""
    started = threading.Event()
    told: dict[str, Any] = {}

    async def serve() -> None:
        # The longest wait is short, so that waiting polls do not delay the test.
        # The broker has the view of a cluster, for the operations on clusters.
        clock = SystemClock()
        logs = Logs(MemoryTable(), clock)
        few = FewNodes(Records(logs.resolver), clock)
        broker = Broker(
            Config(
                limits=LimitsConfig(wait_max_s=0.01),
                transactions=TransactionsConfig(transactions_reset_allowed=True),
            ),
            stores=(logs, few.records),
            clock=few.clock,
            cluster=few.view(),
        )
        for topic in ("0", "a", "A", "t"):
            for namespace in ("0", "a", "A", "default"):
                await broker.call("PUT", f"/v1/namespaces/{namespace}/topics/{topic}")
        assert (await broker.call("GET", topic_path("t"))).status == 200
        await broker.server.start("127.0.0.1", 0)
        told["stop"], told["loop"] = asyncio.Event(), asyncio.get_running_loop()
        told["port"] = broker.server.port
        started.set()
        await told["stop"].wait()
        await broker.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30), "the broker did not start"
    yield f"http://127.0.0.1:{told['port']}"
    told["loop"].call_soon_threadsafe(told["stop"].set)
    thread.join(30)
    assert not thread.is_alive(), "the broker did not stop"


def operation(name: str) -> schemathesis.APIOperation:
    for result in SCHEMA.get_all_operations():
        found = result.ok()
        if found.definition.raw["operationId"] == name:
            return found
    raise AssertionError(f"no operation {name}")


def is_timeout(text: object) -> bool:
    try:
        return float(str(text)) > 0
    except ValueError:
        return False


def answers(url: str, name: str, mode: GenerationMode, known: dict[str, str]) -> set[int]:
    """Send requests made from an operation's entry in the document; return the statuses of the answers."""
    checker = Checker()
    statuses: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation(name).as_strategy(generation_mode=mode, path_parameters=known))
    def run(case: Case) -> None:
        if is_timeout(case.headers.get("Request-Timeout")):
            # Nearly all drawn timeouts are too short for any request, and 503 is the right answer to them.
            case.headers["Request-Timeout"] = "30"
        if mode is GenerationMode.POSITIVE and "Broker-Generation" in case.headers:
            case.headers["Broker-Generation"] = "1"
        reply = case.call(base_url=url)
        case.validate_response(reply, checks=CHECKS if reply.content else CHECKS_OF_NOTHING)
        headers = CIMultiDict((key, value[0]) for key, value in reply.headers.items())
        answered = Answered(reply.status_code, headers, reply.content)
        checker.check(case.method, reply.request.path_url, answered)
        statuses.add(reply.status_code)

    run()
    return statuses


@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_answers_to_allowed_requests(url: str, name: str) -> None:
    template = BY_NAME[name].template
    known = {key: value for key, value in KNOWN.items() if f"{{{key}}}" in template}
    if name in {"create_topic", "delete_topic"}:
        known = {}
    statuses = answers(url, name, GenerationMode.POSITIVE, known)
    assert 200 in statuses or name in NEEDS_KNOWLEDGE, statuses


@pytest.mark.parametrize("name", sorted(set(OPERATION_NAMES) - NOTHING_TO_GET_WRONG))
def test_answers_to_forbidden_requests(url: str, name: str) -> None:
    assert answers(url, name, GenerationMode.NEGATIVE, {}) - {200}


def test_only_endless_operations_are_left_out() -> None:
    assert len(OPERATION_NAMES) == len(BY_NAME) - len(ENDLESS)
    assert set(BY_NAME) >= ENDLESS | NOTHING_TO_GET_WRONG
