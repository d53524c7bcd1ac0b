import random
from pathlib import Path

import pytest

from broker.model import Poll
from broker.operations.table import OPERATIONS
from broker.wire import avro
from tests.kit.fuzzing.corpus import Answer, Corpus, load, save
from tests.kit.fuzzing.grammar import Case, Grammar
from tests.kit.fuzzing.mutation import BODY_BYTES_MAX, misframed, mutated, wire
from tests.kit.serving import Broker

KEPT = Path(__file__).parents[2] / "data" / "corpus" / "requests.jsonl"
POLL = Case("poll", "POST", "/x", (("Content-Type", "avro/binary"),), avro.encode_poll(Poll()))


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


def test_there_are_cases_of_every_route(rng: random.Random) -> None:
    grammar = Grammar(rng)
    assert {grammar.case().route for _ in range(20_000)} == {each.name for each in OPERATIONS}


async def test_most_cases_of_the_grammar_are_well_formed(
    rng: random.Random,
) -> None:
    """A grammar whose cases all fail the first check would find no errors behind it."""
    broker, grammar = Broker(), Grammar(rng)
    statuses: list[int] = []
    for operation in OPERATIONS:
        if operation.name in {"publish", "store", "poll", "rollback", "browse", "browse_as"}:
            for _ in range(60):
                case = grammar.of(operation)
                answered = await broker.ask(case.method, case.target, case.body, dict(case.headers))
                statuses.append(answered.status)
    await broker.close()
    assert sum(status != 400 for status in statuses) > len(statuses) / 3
    assert 500 not in statuses


def test_mutations_stay_small_and_change_something(rng: random.Random) -> None:
    case, grammar = POLL, Grammar(rng)
    seen = set()
    for _ in range(2_000):
        case = mutated(case, grammar.case(), rng)
        seen.add(wire(case))
        assert len(case.body) <= BODY_BYTES_MAX
        assert isinstance(misframed(wire(case), rng), bytes)
    assert len(seen) > 1_000


def test_a_case_with_a_new_answer_is_kept(tmp_path: Path) -> None:
    corpus = Corpus()
    assert corpus.take(POLL, Answer(400, "bad_request", "limit: 5 is too 'large'."))
    assert not corpus.take(POLL, Answer(400, "bad_request", "limit: 77 is too 'small'."))
    assert corpus.take(POLL, Answer(413, "body_too_large", ""))
    save(tmp_path / "kept", corpus.cases, 10_000)
    assert load(tmp_path / "kept") == [POLL, POLL]
    save(tmp_path / "kept", corpus.cases, 1)
    assert load(tmp_path / "kept") == []


def test_the_kept_corpus_is_small_and_can_be_read() -> None:
    assert len(load(KEPT)) > 100
    assert KEPT.stat().st_size < 200_000
