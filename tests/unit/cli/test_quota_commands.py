"""``broker access quotas`` against a broker in this process."""

import json

import pytest

from tests.kit.served import ServedNode
from tests.unit.cli.running import run


@pytest.fixture(scope="module")
def node():
    with ServedNode() as served:
        yield served


def test_limits_are_set_listed_and_removed(capsys, node):
    def quotas(*words):
        return run(capsys, "access", "quotas", *words, "--url", node.url)

    assert quotas("list") == (0, "", "")
    code, _, err = quotas("set", "alice", "publish_bytes_s=10MB", "waits=none", "topics=2")
    assert code == 0
    assert err.startswith("the limits of alice are set")
    assert quotas("set", "topic:audit/logins", "stored_bytes=1GiB")[0] == 0
    code, out, _ = quotas("list")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["WHO", "LIMITS"],
        ["alice", "publish_bytes_s=10000000", "topics=2", "waits=none"],
        ["topic:audit/logins", "stored_bytes=1073741824"],
    ]
    told = json.loads(quotas("list", "--json")[1])
    assert told["quotas"][1] == {"who": "topic:audit/logins", "limits": {"stored_bytes": 1 << 30}}
    assert quotas("remove", "alice")[2] == "alice has no limits\n"
    assert quotas("remove", "alice")[2] == "alice had no limits\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("alice", "waits"), 2, "is not KIND=LIMIT"),
        (("alice", "waits=-1"), 2, "is not KIND=LIMIT"),
        (("alice", "speed=1"), 1, "no quota 'speed'"),
        (("topic:audit/logins", "waits=1"), 1, "no quota of a topic"),
    ],
)
def test_a_limit_that_can_not_be_is_refused(capsys, node, words, code, text):
    left, _, err = run(capsys, "access", "quotas", "set", *words, "--url", node.url)
    assert left == code
    assert text in err
