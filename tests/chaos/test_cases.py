"""The failure cases: each proves that its fault happened, passes, and fails under its mutant."""

import json

import pytest
from _pytest.mark.structures import ParameterSet
from click.testing import CliRunner

from broker.storage.memory.row_space import RowSpace
from broker.testing import mutants
from chaos import clocks, full_disk
from chaos.cases import CASES, Case, CaseTarget, Played
from chaos.cases.play import play
from chaos.checkers import NAMES, Violation
from chaos.cli import cli
from chaos.proxied_cluster import ChaosCluster
from tests.kit.fixtures import require

OWN_NAMES = {"cleaned_up", "epoch_fell", "leader_moved", "time_poisoned"}
"""Violations that the cases report themselves, because no checker finds them."""
IN_SHORT = ("zombie-leader", "late-rollback")
"""The cluster cases in every test run. All of them would take too long.

Only the nightly run plays them under their mutants.
"""

quick = pytest.mark.timeout(120)
on_a_cluster = [
    pytest.mark.integration,
    pytest.mark.server("hbase", "toxiproxy"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


def some(where: CaseTarget, *, mutated: bool = False) -> list[ParameterSet]:
    chosen = []
    for case in CASES.values():
        if case.where is where:
            is_short = where is CaseTarget.INSIDE or (
                not mutated and (where is CaseTarget.ALONE or case.name in IN_SHORT)
            )
            marks = [] if is_short else [pytest.mark.nightly]
            chosen.append(pytest.param(case, id=case.name, marks=marks))
    return chosen


def passed(played: Played) -> None:
    assert played.exit_code == 0, json.dumps(played.as_json())


def failed(played: Played) -> None:
    told = json.dumps(played.as_json())
    assert played.exit_code == 1, told
    assert played.is_as_expected, told


@pytest.mark.parametrize("case", some(CaseTarget.INSIDE))
async def test_a_case_of_logs_passes(case: Case) -> None:
    passed(await play(case, None))


@pytest.mark.parametrize("case", some(CaseTarget.INSIDE, mutated=True))
async def test_a_case_of_logs_fails_under_its_mutant(case: Case) -> None:
    change = RowSpace.change
    failed(await play(case, None, mutant=case.mutant))
    assert RowSpace.change is change, "the mutant ended with the case"


@pytest.mark.integration
@pytest.mark.slow
@quick
@pytest.mark.parametrize("case", some(CaseTarget.ALONE))
async def test_a_case_of_one_broker_passes(case: Case) -> None:
    passed(await play(case, None))


@pytest.mark.integration
@pytest.mark.slow
@quick
@pytest.mark.parametrize("case", some(CaseTarget.ALONE, mutated=True))
async def test_a_case_of_one_broker_fails_under_its_mutant(case: Case) -> None:
    failed(await play(case, None, mutant=case.mutant))


class TestOnACluster:
    pytestmark = on_a_cluster

    @pytest.mark.parametrize("case", some(CaseTarget.CLUSTER))
    async def test_a_case_passes(self, case: Case, cluster: ChaosCluster) -> None:
        require("hbase")
        passed(await play(case, cluster))

    @pytest.mark.parametrize("case", some(CaseTarget.CLUSTER, mutated=True))
    async def test_a_case_fails_under_its_mutant(self, case: Case, cluster: ChaosCluster) -> None:
        require("hbase")
        failed(await play(case, cluster, mutant=case.mutant))


async def test_a_case_on_a_machine_without_settable_clocks_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "find_spec", lambda _: None)
    played = await play(CASES["clock-back"], None)
    assert played.exit_code == 2
    assert "libfaketime is not installed" in played.evidence["ended_by"]


async def test_a_case_on_a_machine_without_mount_namespaces_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_disk, "in_own_mounts", lambda *_: ["false"])
    played = await play(CASES["hole"], None)
    assert (played.exit_code, list(played.faults.values())) == (2, [False])


def test_there_are_24_cases() -> None:
    assert [case.number for case in CASES.values()] == list(range(1, 25))


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_each_case_has_texts_a_mutant_and_known_violations(case: Case) -> None:
    assert all((case.title, case.happens, case.protects, case.without))
    assert case.mutant in mutants.NAMES
    assert case.violations
    assert case.violations <= set(NAMES) | OWN_NAMES


def test_the_exit_code_gives_the_result_of_a_case() -> None:
    case = CASES["zombie-leader"]
    assert Played(case).exit_code == 2, "no fault happened"
    assert Played(case, faults={"pause": False}).exit_code == 2
    assert Played(case, faults={"pause": True}).exit_code == 0
    assert Played(case, faults={"pause": True}, is_known=False).exit_code == 2
    wrong = [Violation("lost_tail", "")]
    assert Played(case, violations=wrong).exit_code == 1
    assert not Played(case, violations=wrong).is_as_expected
    assert Played(case, case.mutant, wrong).as_json()["as_expected"]
    assert not Played(case, case.mutant, [Violation("torn", "")]).is_as_expected


def test_the_command_line_lists_the_cases_and_plays_one() -> None:
    listed = CliRunner().invoke(cli, ["cases", "--json"])
    assert [one["name"] for one in json.loads(listed.stdout)] == list(CASES)
    assert "zombie-leader" in CliRunner().invoke(cli, ["cases"]).stdout
    played = CliRunner().invoke(cli, ["case", "epoch-race", "--json"])
    assert (played.exit_code, json.loads(played.stdout)["verdict"]) == (0, "valid")
    told = CliRunner().invoke(cli, ["case", "epoch-race", "--mutant"])
    assert (told.exit_code, "skipped" in told.stdout) == (1, True)
