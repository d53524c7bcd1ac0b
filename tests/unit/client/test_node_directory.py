import random

import pytest

from broker.client.node_directory import (
    BACK_OFF_MAX_S,
    DOUBT_S,
    LEAVING_S,
    NODES_MAX,
    Leader,
    NodeDirectory,
    leader_of,
)
from broker.model import TopicId

A, B, C = "http://a:1", "http://b:2", "http://c:3"
T1, T2 = TopicId("ns1", "t1"), TopicId("ns1", "t2")


class First(random.Random):
    """Chooses the first address, and never shortens a back-off."""

    def randrange(self, *_):
        return 0

    def uniform(self, low, high):
        return high


def nodes(*given, **options):
    return NodeDirectory(given or (A, B, C), rng=First(), **options)


def header(url, epoch, node=1):
    return f"{url};node={node};epoch={epoch}"


@pytest.mark.parametrize(
    ("text", "leader"),
    [
        ("http://b:2;node=2;epoch=7", Leader(B, 2, 7)),
        ("http://b:2/; node=2; epoch=7; more=x", Leader(B, 2, 7)),
        ("http://b:2;node=2;epoch=", Leader(B, 2, None)),
        ("http://b:2;epoch=-1", Leader(B, None, None)),
        (f"http://b:2;node=2;epoch={'9' * 5000}", Leader(B, 2, None)),
        ("http://b:2", Leader(B, None, None)),
        ("b:2;node=2;epoch=7", None),
        (";node=2", None),
        ("", None),
    ],
)
def test_the_header_is_read(text, leader):
    assert leader_of(text) == leader


def test_a_topic_without_a_leader_goes_to_one_node_until_it_is_lost():
    known = nodes()
    assert [known.place(topic, 0.0) for topic in (T1, T2, None)] == [A] * 3
    known.lost(A, 0.0)
    assert [known.place(topic, 0.01) for topic in (T1, T2, None)] == [B] * 3
    assert known.place(T1, 0.02, [B]) == C
    assert known.place(T1, 1000.0) == B
    known.lost(B, 1000.0)
    assert known.place(T1, 1000.0) == C


def test_clients_begin_at_different_nodes():
    assert {NodeDirectory((A, B, C)).place(None, 0.0) for _ in range(100)} == {A, B, C}


def test_a_topic_goes_to_its_leader_whichever_node_named_it():
    known = nodes()
    known.heard(T1, A, header(C, 1), 0.0)
    assert (known.place(T1, 0.0), known.place(T2, 0.0)) == (C, A)
    assert known.leader(T1) == Leader(C, 1, 1)
    assert known.leader(T2) is None


def test_a_leader_outside_the_given_addresses_is_used_for_other_topics_too():
    known = nodes(A)
    known.heard(T1, A, header(B, 1), 0.0)
    assert known.place(T1, 0.0) == B
    known.lost(A, 0.0)
    assert known.place(T2, 0.0) == B


def test_a_newer_epoch_is_believed_and_an_older_one_ignored():
    known = nodes()
    known.heard(T1, A, header(B, 5), 0.0)
    known.heard(T1, A, header(C, 4), 0.0)
    assert known.place(T1, 0.0) == B
    known.heard(T1, B, header(C, 6), 0.0)
    assert known.place(T1, 0.0) == C
    known.heard(T1, A, header(B, 5), 0.0)
    assert known.place(T1, 0.0) == C


def test_epochs_that_start_over_are_believed_after_a_while():
    known = nodes()
    known.heard(T1, A, header(B, 500), 0.0)
    known.heard(T1, B, header(C, 1), 10.0)
    known.heard(T1, B, header(B, 500), 20.0)
    known.heard(T1, B, header(C, 1), 30.0)
    known.heard(T1, B, header(C, 1), 29.9 + DOUBT_S)
    assert known.place(T1, 0.0) == B
    known.heard(T1, B, header(C, 1), 30.0 + DOUBT_S)
    assert known.place(T1, 0.0) == C


def test_an_assigned_node_without_a_claim_is_asked_but_the_epoch_is_kept():
    known = nodes()
    known.heard(T1, A, header(B, 5), 0.0)
    known.heard(T1, B, f"{C};node=3;epoch=", 0.0)
    assert known.leader(T1) == Leader(C, 3, 5)
    known.heard(T1, A, header(A, 4), 0.0)
    assert known.place(T1, 0.0) == C


def test_the_back_off_of_a_lost_leader_grows_and_others_are_asked_meanwhile():
    known = nodes()
    known.heard(T1, A, header(C, 1), 0.0)
    now, back_offs = 0.0, []
    for _ in range(8):
        known.lost(C, now)
        known.lost(C, now)  # A second lost request to the same node does not count.
        assert known.place(T1, now) == A
        before = now
        while known.place(T1, now) != C:
            now += 0.001
        back_offs.append(now - before)
    assert back_offs == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.002)
    assert back_offs[-1] == pytest.approx(BACK_OFF_MAX_S, abs=0.002)
    known.answered(C)
    known.lost(C, now)
    assert known.place(T1, now + 0.101) == C


def test_a_node_that_leaves_is_avoided_until_a_newer_epoch_names_it():
    known = nodes()
    known.heard(T1, A, header(B, 1), 0.0)
    known.leaving(B, 0.0)
    assert known.place(T1, LEAVING_S - 0.01) == A
    known.heard(T1, A, header(B, 1), 0.1)
    assert known.place(T1, 0.1) == A
    known.heard(T1, A, header(C, 2), 0.2)
    known.heard(T1, C, header(B, 4), 0.3)
    assert known.place(T1, 0.3) == B


def test_when_all_nodes_are_backed_off_the_first_back_off_to_end_decides():
    known = nodes()
    known.leaving(B, 0.0)
    known.lost(C, 0.0)
    known.lost(A, 0.05)
    assert known.place(T1, 0.06) == C


def test_an_attempt_goes_on_with_untried_nodes_that_are_not_backed_off():
    known = nodes()
    known.heard(T1, A, header(C, 1), 0.0)
    known.lost(B, 0.0)
    assert known.place(T1, 0.0, [C]) == A
    assert known.place(T1, 0.0, [C, A]) is None


def test_behind_a_proxy_leaders_are_not_followed():
    known = nodes(A, B, follow=False)
    known.heard(T1, A, header(C, 1), 0.0)
    assert known.place(T1, 0.0) == A
    assert known.leader(T1) is None


def test_a_leader_named_over_https_is_not_followed_to_http():
    known = nodes("https://a:1")
    known.heard(T1, "https://a:1", header(B, 1), 0.0)
    assert known.place(T1, 0.0) == "https://a:1"
    known.heard(T1, "https://a:1", header("https://b:2", 1), 0.0)
    assert known.place(T1, 0.0) == "https://b:2"


def test_learned_addresses_are_bounded_and_the_given_ones_stay():
    known = nodes(A)
    for epoch in range(3 * NODES_MAX):
        known.heard(T1, A, header(f"http://n:{epoch + 1}", epoch), 0.0)
    tried = []
    while (url := known.place(T2, 0.0, tried)) is not None:
        tried.append(url)
    assert len(tried) == 1 + NODES_MAX
    for url in set(tried) - {A}:
        known.lost(url, 0.0)
    assert known.place(T1, 0.0) == A


def test_only_a_given_node_names_others_to_a_client_with_credentials():
    known = NodeDirectory((A,), only_by_given=True)
    known.heard(T1, A, header(B, 5), 0.0)
    assert known.place(T1, 0.0) == B
    known.heard(T1, B, header(C, 6), 0.0)
    assert known.place(T1, 0.0) == A, "B may not name C: ask A, which names it"
    known.heard(T1, A, header(C, 6), 0.0)
    assert known.place(T1, 0.0) == C
    known.heard(T1, C, header(B, 7), 0.0)
    assert known.place(T1, 0.0) == B, "B was named by A before"


def test_a_client_without_credentials_follows_any_node():
    known = NodeDirectory((A,))
    known.heard(T1, A, header(B, 5), 0.0)
    known.heard(T1, B, header(C, 6), 0.0)
    assert known.place(T1, 0.0) == C
