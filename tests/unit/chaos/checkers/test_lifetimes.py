"""Expiry while a topic's lifetime changes: a message that is alive when it is raised gets the new lifetime."""

import pytest

from chaos.checkers import Promises
from tests.kit.story import Story, rid

PROMISES = Promises(early_ms=100, late_ms=100)


def of_a_second() -> Story:
    """Two messages of a topic with a lifetime of a second."""
    story = Story(PROMISES).done("create", {"ttl_s": 1})
    return story.publish(1, "a").publish(2, "b").read([(1, "a"), (2, "b")])


def raised(at_ms: int, outcome: str = "ok") -> Story:
    return of_a_second().at(at_ms).done("update", {"ttl_s": 10}, outcome=outcome)


def raised_while_read() -> Story:
    """A read begins before the lifetime is raised, and is answered long after."""
    story = of_a_second().at(500)
    reading = story.begin("read", {"at_ms": 500})
    story.done("update", {"ttl_s": 10}).at(2000)
    reading.ok({"rows": [[rid(2), "b", None]], "at_ms": 2000})
    return story


MISSING = [(2, "b")]

MUST_BE_SHOWN = {
    "raised while it lived": raised(500).at(2000).read(MISSING),
    "raised, and only read at the end": raised(500).at(2000).final((2, "b")),
}
MAY_BE_MISSING = {
    "raised when it was about to expire": raised(950).at(2000).read(MISSING),
    "perhaps not raised": raised(500, "unknown").at(2000).read(MISSING),
    "not raised": raised(500, "fail").at(2000).read([], seen=2),
    "the raised lifetime is over too": raised(500).at(9950).read(MISSING),
    "raised while it was read": raised_while_read(),
    "lowered": raised(500).at(600).done("update", {"ttl_s": 1}).at(2000).read(MISSING),
    "lowered for a while": raised(500)
    .at(600)
    .done("update", {"ttl_s": 1})
    .at(700)
    .done("update", {"ttl_s": 20})
    .at(2000)
    .read(MISSING),
    "with a short ttl of its own": Story(PROMISES)
    .done("create", {"ttl_s": 1})
    .publish(1, "a", ttl_ms=1000)
    .publish(2, "b")
    .at(500)
    .done("update", {"ttl_s": 10})
    .at(1200)
    .read(MISSING),
}


@pytest.mark.parametrize("name", MUST_BE_SHOWN)
def test_a_message_alive_when_the_lifetime_was_raised_must_be_shown(name: str) -> None:
    assert {"expired_early", "lost_prefix"} & MUST_BE_SHOWN[name].found()


@pytest.mark.parametrize("name", MAY_BE_MISSING)
def test_a_message_that_may_have_expired_may_be_missing(name: str) -> None:
    assert MAY_BE_MISSING[name].found() == set()


def test_a_message_with_its_own_ttl_must_be_shown_when_the_topics_is_raised() -> None:
    story = Story(PROMISES).done("create", {"ttl_s": 1})
    story.publish(1, "a", ttl_ms=5000).publish(2, "b").read([(1, "a"), (2, "b")])
    story.at(500).done("update", {"ttl_s": 10})
    assert "expired_early" in story.at(2000).read(MISSING).found()
