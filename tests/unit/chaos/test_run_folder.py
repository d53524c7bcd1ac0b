from pathlib import Path

import pytest

from chaos.checkers import Promises, Verdict, Violation
from chaos.figures import RunFigures
from chaos.history import History
from chaos.run_folder import (
    ACKNOWLEDGED_MIN,
    EXIT_CODES,
    NOT_BACK,
    Judged,
    RunFolder,
    judge,
    read_verdict,
    runs_below,
    together,
    write_verdict,
)

VALID = Verdict((), is_known=True)
INVALID = Verdict((Violation("lost_tail", "three are lost"),), is_known=True)


def figures(acknowledged: int = ACKNOWLEDGED_MIN, **happened: int) -> RunFigures:
    made = RunFigures(acknowledged=acknowledged)
    made.faults.update(happened)
    made.happened.update(happened)
    return made


def test_enough_and_nothing_wrong_is_valid() -> None:
    judged = together([judge(figures(kill=1), VALID)], ["kill"])
    assert (judged.outcome, EXIT_CODES[judged.outcome]) == ("valid", 0)


def test_a_violation_in_a_short_history_is_invalid() -> None:
    judged = judge(figures(0), INVALID)
    assert (judged.outcome, EXIT_CODES[judged.outcome]) == ("invalid", 1)
    assert judged.as_json()["violations"] == {"lost_tail": 1}


def test_a_rare_violation_is_told_beside_many_of_another_name() -> None:
    many = [Violation("lost_tail", str(number)) for number in range(150)]
    judged = judge(figures(), Verdict((*many, Violation("torn", "one")), is_known=True))
    details = judged.as_json()["details"]
    assert details[:2] == [
        {"name": "lost_tail", "detail": "0"},
        {"name": "torn", "detail": "one"},
    ]
    assert len(details) == 100


@pytest.mark.parametrize(
    ("made", "verdict", "why"),
    [
        (figures(ACKNOWLEDGED_MIN - 1, kill=1), VALID, "acknowledged"),
        (figures(kill=1), Verdict((), is_known=False), "no read at the end"),
        (figures(), VALID, "did not happen: kill"),
    ],
)
def test_too_little_is_unknown(made: RunFigures, verdict: Verdict, why: str) -> None:
    judged = together([judge(made, verdict)], ["kill"])
    assert (judged.outcome, EXIT_CODES[judged.outcome]) == ("unknown", 2)
    assert why in " ".join(judged.unsure)


def test_a_fault_may_happen_in_any_segment() -> None:
    parts = [judge(figures(kill=1), VALID), judge(figures(pause=2), VALID)]
    assert together(parts, ["kill", "pause"]).outcome == "valid"
    assert together(parts, ["kill", "session"]).outcome == "unknown"


def test_one_invalid_segment_is_an_invalid_run() -> None:
    parts = [judge(figures(kill=1), VALID), judge(figures(kill=1), INVALID)]
    assert together(parts).outcome == "invalid"
    assert together([]).outcome == "unknown"


def test_runs_are_kept_and_added_up(tmp_path: Path) -> None:
    for name, verdict in (("one", VALID), ("two", INVALID)):
        folder = RunFolder(tmp_path / name)
        judged = judge(figures(kill=2), verdict)
        folder.save_history(1, History(lambda: 0))
        write_verdict(folder.folder, judged)
        assert (folder.folder / "001" / "history.jsonl").exists()
    files = runs_below(tmp_path)
    assert [file.parent.name for file in files] == ["one", "two"]
    whole = together([read_verdict(file) for file in files])
    assert whole.outcome == "invalid"
    assert whole.figures.acknowledged == 2 * ACKNOWLEDGED_MIN
    assert whole.figures.happened == {"kill": 4}
    assert runs_below(tmp_path / "one") == [tmp_path / "one" / "verdict.json"]


def test_of_many_violations_some_have_details_and_all_are_counted() -> None:
    many = Verdict(200 * INVALID.violations, is_known=True, counts={"found.lost_tail": 5000})
    told = together([judge(figures(), many), judge(figures(), INVALID)]).as_json()
    assert (told["violations"], len(told["details"])) == ({"lost_tail": 5001}, 100)
    assert Judged.from_json(told).as_json()["violations"] == {"lost_tail": 5001}


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    write_verdict(RunFolder(tmp_path / "one").folder, Judged())
    with pytest.raises(FileExistsError):
        RunFolder(tmp_path / "one")


def test_a_promise_that_could_not_be_judged_makes_the_verdict_unknown() -> None:
    silent = Verdict((), is_known=True, unjudged=("expired_late", "unavailable"))
    promised = judge(figures(kill=1), silent, promises=Promises(unavailable_ms=1000))
    assert (promised.outcome, promised.unsure) == ("unknown", [NOT_BACK])
    nothing = judge(figures(kill=1), silent, promises=Promises())
    assert (nothing.outcome, nothing.as_json()["not_judged"]) == (
        "valid",
        ["expired_late", "unavailable"],
    )
    whole = together([judge(figures(kill=1), VALID), nothing])
    assert Judged.from_json(whole.as_json()).not_judged == ["expired_late", "unavailable"]


def test_an_older_verdict_did_not_judge_availability() -> None:
    told = Judged().as_json()
    del told["not_judged"], told["longest_silent_when_well_s"]
    assert Judged.from_json(told).not_judged == ["unavailable"]
