"""The failure cases: each proves that its fault happened, passes, and fails without its guard."""

import json

import pytest
from _pytest.mark.structures import ParameterSet
from click.testing import CliRunner

from broker import guards
from broker.testing.checkers import NAMES, Violation
from broker.testing.fixtures import require
from chaos.cases import CASES, Case, Played, Where
from chaos.cases.play import play
from chaos.cli import cli
from chaos.cluster import ChaosCluster

OWN_NAMES = {"cleaned_up", "epoch_fell", "leader_moved", "same_instance_id", "time_poisoned"}
"""Violations that no checker of histories finds."""
IN_SHORT = ("zombie-leader", "late-rollback")
"""Of the cases that are played on a cluster, those that every run of the tests plays: all would take too long.

Without their guards, cases are played by the nightly run alone.
"""

quick = pytest.mark.timeout(120)
on_a_cluster = [
    pytest.mark.integration,
    pytest.mark.server("hbase", "toxiproxy"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


def some(*where: Where, guarded: bool = False) -> list[ParameterSet]:
    chosen = []
    for case in CASES.values():
        if case.where in where and (case.guard is not None or not guarded):
            is_short = not guarded and (case.where is not Where.CLUSTER or case.name in IN_SHORT)
            marks = [] if is_short else [pytest.mark.nightly]
            chosen.append(pytest.param(case, id=case.name, marks=marks))
    return chosen


def passed(played: Played) -> None:
    assert played.exit_code == 0, json.dumps(played.as_json())


def failed(played: Played) -> None:
    told = json.dumps(played.as_json())
    assert played.exit_code == 1, told
    assert played.is_as_expected, told


@pytest.mark.parametrize("case", some(Where.INSIDE))
async def test_a_case_of_stores_passes(case: Case) -> None:
    passed(await play(case, None))


@pytest.mark.parametrize("case", some(Where.INSIDE, guarded=True))
async def test_a_case_of_stores_fails_without_its_guard(case: Case) -> None:
    failed(await play(case, None, without=case.guard))
    assert not guards.switched_off()


@pytest.mark.integration
@pytest.mark.slow
@quick
@pytest.mark.parametrize("case", some(Where.ALONE))
async def test_a_case_of_one_broker_passes(case: Case) -> None:
    passed(await play(case, None))


@pytest.mark.integration
@pytest.mark.slow
@quick
@pytest.mark.parametrize("case", some(Where.ALONE, guarded=True))
async def test_a_case_of_one_broker_fails_without_its_guard(case: Case) -> None:
    failed(await play(case, None, without=case.guard))


class TestOnACluster:
    pytestmark = on_a_cluster

    @pytest.mark.parametrize("case", some(Where.CLUSTER))
    async def test_a_case_passes(self, case: Case, cluster: ChaosCluster) -> None:
        require("hbase")
        passed(await play(case, cluster))

    @pytest.mark.parametrize("case", some(Where.CLUSTER, guarded=True))
    async def test_a_case_fails_without_its_guard(self, case: Case, cluster: ChaosCluster) -> None:
        require("hbase")
        failed(await play(case, cluster, without=case.guard))


def test_there_are_twenty_four() -> None:
    assert [case.number for case in CASES.values()] == list(range(1, 25))


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_each_says_what_protects_and_how_that_shows(case: Case) -> None:
    assert all((case.title, case.happens, case.protects, case.without))
    assert case.guard is None or case.guard in guards.NAMES
    assert bool(case.violations) is (case.guard is not None)
    assert case.violations <= set(NAMES) | OWN_NAMES


def test_what_came_of_a_case_is_its_exit_code() -> None:
    case = CASES["zombie-leader"]
    assert Played(case, None).exit_code == 2, "nothing happened"
    assert Played(case, None, faults={"pause": False}).exit_code == 2
    assert Played(case, None, faults={"pause": True}).exit_code == 0
    assert Played(case, None, faults={"pause": True}, is_known=False).exit_code == 2
    wrong = [Violation("lost_tail", "")]
    assert Played(case, None, wrong).exit_code == 1
    assert not Played(case, None, wrong).is_as_expected
    assert Played(case, case.guard, wrong).as_json()["as_expected"]
    assert not Played(case, case.guard, [Violation("torn", "")]).is_as_expected


def test_the_command_line_lists_them_and_plays_one() -> None:
    listed = CliRunner().invoke(cli, ["cases", "--json"])
    assert [one["name"] for one in json.loads(listed.stdout)] == list(CASES)
    assert "zombie-leader" in CliRunner().invoke(cli, ["cases"]).stdout
    played = CliRunner().invoke(cli, ["case", "epoch-race", "--json"])
    assert (played.exit_code, json.loads(played.stdout)["verdict"]) == (0, "valid")
    told = CliRunner().invoke(cli, ["case", "epoch-race", "--without-guard"])
    assert (told.exit_code, "lost_tail" in told.stdout) == (1, True)


def test_a_case_without_a_guard_of_ours_says_why() -> None:
    told = CliRunner().invoke(cli, ["case", "zookeeper-outage", "--without-guard"])
    assert told.exit_code == 2
    assert CASES["zookeeper-outage"].without in " ".join(told.output.split())
