"""Plans: drawn from a seed, saved, shortened."""

from __future__ import annotations

from dataclasses import replace

from tests.kit.seeds.faults import KINDS
from tests.kit.seeds.plan import Fault, Plan, draw_plan
from tests.kit.seeds.shrink import shrunk

WEIGHTS = {name: kind.weight for name, kind in KINDS.items()}


def drawn(seed: int) -> Plan:
    return draw_plan(seed, minutes=3, workloads=["log", "topics"], kinds=WEIGHTS)


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(9)


def test_seeds_use_workloads_in_turn_and_every_kind_of_fault() -> None:
    plans = [drawn(seed) for seed in range(200)]
    assert {plan.workload for plan in plans} == {"log", "topics"}
    met = {fault.kind for plan in plans for fault in plan.faults}
    assert met == {name for name, weight in WEIGHTS.items() if weight.weight > 0}


def test_a_saved_plan_is_read_back() -> None:
    plan = replace(drawn(7), mutant="dedupe")
    assert Plan.of_json(plan.to_json()) == plan


def fault(number: int) -> Fault:
    return Fault(f"kind{number}", float(number), 1.0, number)


def test_a_schedule_is_shortened_to_the_faults_that_matter() -> None:
    plan = Plan(seed=1, minutes=8.0, faults=tuple(fault(number) for number in range(60)))

    def fails(candidate: Plan) -> bool:
        return {5, 23} <= {fault.draw for fault in candidate.faults}

    shorter = shrunk(plan, fails, runs_max=100)
    assert [fault.draw for fault in shorter.faults] == [5, 23]
    assert shorter.minutes < 1.0


def test_shortening_stops_after_its_number_of_runs() -> None:
    runs: list[Plan] = []

    def fails(candidate: Plan) -> bool:
        runs.append(candidate)
        return False

    plan = Plan(seed=1, faults=tuple(fault(number) for number in range(60)))
    assert shrunk(plan, fails, runs_max=10) == plan
    assert len(runs) == 10
