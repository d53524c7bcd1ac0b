"""Every broken body is either read or refused."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from broker.api.messages import plainjson
from broker.errors import BrokerError
from broker.model import TopicId
from broker.wire import avro, avrojson
from broker.wire.topics import decode_properties
from broker.wire.varint import encode_long
from tests.kit import mutations
from tests.kit.mutations import LAST_FIELDS, Mutant, Target
from tests.kit.request_bodies import read_poll, read_publish

MUTANTS = 20_000
"""tests/conformance sends five times as many to the handlers."""
MESSAGES_MAX = 50
TOPIC = TopicId("ns", "t")

READERS: dict[Target, Callable[[bytes], object]] = {
    mutations.PUBLISH: lambda body: avro.decode_publish_request(body, messages_max=MESSAGES_MAX),
    mutations.ROLLBACK: avro.decode_publish_response,
    mutations.POLL: partial(read_poll, avro),
    mutations.PUBLISH_AVRO_JSON: partial(read_publish, avrojson, messages_max=MESSAGES_MAX),
    mutations.ROLLBACK_AVRO_JSON: avrojson.decode_publish_response,
    mutations.POLL_AVRO_JSON: partial(read_poll, avrojson),
    mutations.PUBLISH_JSON: partial(read_publish, plainjson, messages_max=MESSAGES_MAX),
    mutations.ROLLBACK_JSON: plainjson.decode_rollback,
    mutations.POLL_JSON: partial(read_poll, plainjson),
    mutations.PROPERTIES: lambda body: decode_properties(body, {"ttl": "5"}, TOPIC),
}


def refusal(mutant: Mutant) -> BrokerError | None:
    try:
        READERS[mutant.target](mutant.body)
    except BrokerError as error:
        return error
    return None


def outcome(mutant: Mutant) -> str:
    """Say how far a reader got: read, refused in the last field, or refused before."""
    error = refusal(mutant)
    if error is None:
        return "read"
    assert 400 <= error.http_status < 500, (mutant, error)
    assert error.outcome == "refused"
    last = error.message.startswith(LAST_FIELDS[mutant.target])
    return "refused in the last field" if last else "refused before"


@pytest.mark.slow
def test_every_reader_reads_or_refuses():
    outcomes = Counter((outcome(m), m.target) for m in mutations.mutants(3, MUTANTS))
    totals = Counter[str]()
    for (name, _), count in outcomes.items():
        totals[name] += count
    assert totals["read"] + totals["refused in the last field"] >= 0.3 * MUTANTS, totals
    assert totals["refused before"] >= 0.2 * MUTANTS, totals
    for target in READERS:
        assert outcomes["read", target], f"no mutant for {target} was read"
        assert outcomes["refused in the last field", target], target
        assert outcomes["refused before", target], target


def test_deep_mutants_reach_the_last_field():
    deep = [m for m in mutations.mutants(4, 3000, deep_share=1.0) if m.deep]
    assert len(deep) == 3000
    early = Counter(m.target for m in deep if outcome(m) == "refused before")
    assert early.total() < 0.1 * len(deep), early


def test_the_same_seed_gives_the_same_mutants():
    first, again = (list(mutations.mutants(5, 200)) for _ in range(2))
    assert first == again
    assert first != list(mutations.mutants(6, 200))


@pytest.mark.parametrize(
    "head", [b"", b"\x02", b"\x02\x02", b"\x00\x02", b"\x00", b"\x04\x01\x00\x02\x00"]
)
@pytest.mark.parametrize("number", [1 << 60, -(1 << 60), (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("target", [mutations.PUBLISH, mutations.ROLLBACK, mutations.POLL])
def test_claims_take_no_memory(target, head, number):
    body = head + encode_long(number) + bytes(1000)
    tracemalloc.start()
    outcome(Mutant(target, body, deep=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000
