import pytest

from broker.testing.mutants import MUTANTS, NAMES, in_force


def owned() -> dict[str, object]:
    return {name: getattr(mutant.owner, mutant.attribute) for name, mutant in MUTANTS.items()}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_mutant_replaces_functions_and_restores_them(name: str) -> None:
    before = owned()
    with in_force(name):
        assert name not in MUTANTS or owned()[name] is not before[name]
    assert owned() == before
