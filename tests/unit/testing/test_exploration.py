import pytest

from broker import guards
from broker.testing import exploration
from broker.testing.exploration import explore, explore_many, find, main


@pytest.fixture(autouse=True)
def allow_switches(monkeypatch):
    yield
    guards._off.clear()


def test_a_run_is_judged_by_its_history_alone():
    outcome = explore(1)
    assert outcome.verdict.is_valid
    assert outcome.happened["acknowledged"] > 0
    assert {"publish", "read"} <= {call.op for call in outcome.calls}
    assert outcome.calls[-1].process.startswith("final")


def test_the_command_repeats_the_run():
    assert explore(7, "storm").command == (
        "python -m broker.testing.exploration --seed 7 --plan storm"
    )
    with guards.without("token"):
        assert explore(7).command.endswith("--plan usual --without token")


def test_many_runs_are_summed_up():
    summary = explore_many(range(1, 4), "usual")
    assert (summary.runs, summary.bad) == (3, [])
    assert summary.happened == sum(
        (explore(seed).happened for seed in range(1, 4)), type(summary.happened)()
    )


def test_a_violation_is_found_and_told_with_its_command():
    with guards.without("confirm-cas"):
        seed = find("lost_tail", range(1, 50), "usual")
        assert seed is not None
        [(command, found)] = explore_many(range(seed, seed + 1), "usual").bad
    assert command.endswith(f"--seed {seed} --plan usual --without confirm-cas")
    assert any(line.startswith("lost_tail") for line in found)


def test_the_command_line_tells_and_fails(capsys):
    assert main(["--seed", "1", "--runs", "2"]) == 0
    assert "2 runs, 0 bad" in capsys.readouterr().out
    assert main(["--seed", "1", "--runs", "5", "--without", "confirm-cas"]) == 1
    assert "python -m broker.testing.exploration --seed" in capsys.readouterr().out


def test_a_run_without_an_acknowledgement_is_not_called_valid(monkeypatch):
    nothing = exploration.Plan(requests=0, nemesis_steps=0)
    monkeypatch.setitem(exploration.PLANS, "nothing", nothing)
    # The last leader still publishes, so the verdict is known: it is the reader's that would not be.
    assert explore(1, "nothing").verdict.is_known
