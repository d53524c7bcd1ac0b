"""How long a topic may be silent, which part of a silence counts, and when it is not judged."""

from __future__ import annotations

import pytest

from chaos.checkers import UNAVAILABLE, Promises
from chaos.history import Ending
from tests.kit.story import Story

PROMISES = Promises(unavailable_ms=1000, healing_ms=2000)


def story(promises: Promises = PROMISES) -> Story:
    return Story(promises).done("create", {}).publish(None, "a")


def fault(of: Story, kind: str = "kill") -> Ending:
    return of.begin("fault", {"kind": kind}, f"nemesis {kind}", "")


def silent_until(ms: int, *, healed: int = 5000) -> Story:
    """A fault begins, a publish is sent, the fault is healed, and then the publish is answered."""
    told = story().at(100)
    ending = fault(told)
    asked = told.publishing("b")
    told.at(healed)
    ending.ok({"happened": True})
    return told.at(ms).answer(asked)


def test_healing_time_does_not_count_and_later_silence_does() -> None:
    assert silent_until(7900).found() == set()
    assert silent_until(8100).found() == {UNAVAILABLE}
    (found,) = silent_until(8100).verdict().violations
    assert found.detail == "ns:t: silent_ms=1100, allowed_ms=1000"


def test_while_one_of_several_faults_lasts_nothing_counts() -> None:
    told = story().at(100)
    first, asked = fault(told, "kill"), told.publishing("b")
    second = fault(told.at(200), "pause")
    told.at(300)
    first.ok({"happened": True})
    told.at(9000)
    second.ok({"happened": True})
    assert told.at(11_900).answer(asked).found() == set()


def test_a_fault_ends_the_counted_silence_and_judges_it() -> None:
    told = story().at(100)
    told.publishing("b")
    fault(told.at(1200))
    assert told.at(9000).found() == {UNAVAILABLE}


def test_a_pause_without_requests_counts_a_second() -> None:
    told = story()
    for ms in (1000, 5000):
        told.at(ms).publish(None, f"b{ms}", outcome="fail")
    assert told.at(9000).publish(None, "c").verdict().counts["longest_unavailable_ms"] == 2000
    assert story().at(1000).publish(None, "b", outcome="fail").at(9000).get(None).found() == set()


def test_a_pause_while_all_heals_does_not_count_at_all() -> None:
    told = story().at(100)
    ending = fault(told)
    told.publish(None, "b", outcome="fail").at(200)
    ending.ok({"happened": True})
    asked = told.at(9000).publishing("c")
    assert told.at(9900).answer(asked).found() == set()


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_a_topic_that_may_be_deleted_owes_nothing(outcome: str) -> None:
    told = story()
    asked = told.publishing("b")
    told.at(100).done("delete", {}, outcome=outcome).at(5000).answer(asked, outcome="fail")
    told.publish(None, "c", outcome="fail").at(5900).publish(None, "d", outcome="fail")
    creating = told.at(6500).begin("create", {"generation": 2})
    asked = told.publishing("e", generation=2)
    told.at(9000)
    creating.ok({"generation": 2})
    assert told.at(9900).answer(asked).found() == set()


def test_an_acknowledgement_after_the_delete_does_not_bring_the_topic_back() -> None:
    told = story()
    asked = told.publishing("b")
    told.at(100).done("delete", {}).answer(asked)
    for ms in (900, 1700, 2500):
        told.at(ms).publish(None, f"c{ms}", outcome="fail")
    assert told.found() == set()
    told.publish(None, "x", topic="ns:u")
    assert UNAVAILABLE not in unjudged(told), "a deleted topic owes no answer"
    told.done("create", {"generation": 2})
    assert UNAVAILABLE not in unjudged(told), "no request came after the topic was created again"


def test_a_topic_that_was_created_again_or_was_not_deleted_owes_everything() -> None:
    told = story().done("delete", {}).at(5000)
    asked = told.publishing("b", generation=2)
    told.done("create", {"generation": 2}).at(6100).answer(asked)
    assert UNAVAILABLE in told.found()
    told = story()
    asked = told.publishing("b")
    told.at(100).done("delete", {}, outcome="fail").at(1200).answer(asked)
    assert told.found() == {UNAVAILABLE}


def unjudged(of: Story) -> tuple[str, ...]:
    return of.verdict().unjudged


def test_unjudged_names_the_violations_without_a_promise() -> None:
    assert unjudged(story(Promises(early_ms=None))) == (
        "expired_early",
        "expired_late",
        "stored_late",
        UNAVAILABLE,
    )
    assert UNAVAILABLE not in unjudged(story())


def test_a_topic_that_comes_back_was_judged_and_one_that_is_silent_was_not() -> None:
    assert UNAVAILABLE not in unjudged(silent_until(5100))
    told = silent_until(5100).at(5200)
    told.publishing("x", topic="ns:u")
    assert UNAVAILABLE in unjudged(told), "the other topic was never acknowledged"
    told = silent_until(5100)
    fault(told)
    assert UNAVAILABLE in unjudged(told), "a fault was never healed"
    told = story()
    fault(told).ok({"happened": True})
    assert UNAVAILABLE in unjudged(told), "no request came since"
    assert UNAVAILABLE in unjudged(told.publish(None, "b", outcome="fail"))
    assert UNAVAILABLE not in unjudged(told.publish(None, "c"))


def test_a_topic_that_was_found_silent_was_judged() -> None:
    told = story()
    told.publishing("b")
    assert unjudged(told.at(9000).get(None)) == ("expired_late", "stored_late")
    assert told.found() == {UNAVAILABLE}


def test_a_history_without_requests_does_not_judge_availability() -> None:
    assert UNAVAILABLE in unjudged(Story(PROMISES).decide("abort", 7))
    assert "unjudged" in Story(PROMISES).decide("abort", 7).verdict().to_json()


@pytest.mark.parametrize("op", ["cas", "get"])
def test_a_register_is_silent_until_it_is_set_or_shown(op: str) -> None:
    told = Story(PROMISES).cas(None, "a")
    asked = told.begin(op, {"key": "k", "expected": "a", "value": "b"}, topic="")
    told.at(900).cas("x", "c", "fail").at(1100)
    asked.ok({"value": "a" if op == "get" else None})
    (found,) = told.verdict().violations
    assert (found.name, found.detail) == (
        UNAVAILABLE,
        "register k: silent_ms=1100, allowed_ms=1000",
    )
    assert UNAVAILABLE not in unjudged(told)


def test_a_requested_register_must_come_back_after_a_fault() -> None:
    told = Story(PROMISES).cas(None, "a")
    fault(told).ok({"happened": True})
    assert UNAVAILABLE in unjudged(told), "no request came since"
    told.begin("get", {"key": "k"}, "asks", topic="")
    assert UNAVAILABLE in unjudged(told)
    assert UNAVAILABLE not in unjudged(told.get("a"))


def test_late_storing_is_judged_if_a_request_has_a_deadline() -> None:
    promises = Promises(stored_late_ms=100)
    assert "stored_late" in unjudged(Story(promises).publish(None, "a"))
    assert "stored_late" not in unjudged(Story(promises).publish(None, "a", until_ms=500))
