from dataclasses import replace

import pytest

from chaos.history import of
from chaos.workloads import publishers, readers
from chaos.workloads.log import LogWorkload
from tests.unit.chaos.workloads import lying
from tests.unit.chaos.workloads.lying import Lies
from tests.unit.chaos.workloads.played import SCALE, play


def test_a_correct_broker_is_valid():
    verdict, calls = play(LogWorkload())
    assert verdict.is_valid, verdict
    kinds = {call.process.partition("-")[0] for call in calls if call.is_ok}
    assert {kind.__name__ for kind in (*publishers.KINDS, *readers.KINDS)} <= kinds
    finals = {call.process for call in calls if call.process.startswith("final")}
    assert len(finals) == 4
    published = of(calls, "publish")
    assert any(call.asked.get("ttl_ms") or call.told.get("replayed") for call in published)
    assert all(call.epoch for call in published)
    by = {kind.__name__ for kind in publishers.KINDS}
    assert {call.process.partition("-")[0] for call in published if call.is_ok} == by


def test_the_final_reads_repeat_a_refused_page():
    lies = Lies("poll", every=2, ask=lying.refused_read)
    _, calls = play(LogWorkload((publishers.keyed,), (readers.browsing,)), lies, seconds=3)
    finals = [call for call in calls if call.process.startswith(("final", "settling"))]
    assert finals
    assert all(call.is_ok for call in finals)


pytestmark = pytest.mark.slow

LIES = {
    "lost": ("lost_middle", Lies("publish", write=lying.not_done)),
    "twice": ("duplicated", Lies("publish", write=lying.done_twice)),
    "half": ("torn", Lies("publish", every=1, write=lying.half_of_it(100))),
    "refused": ("refused_but_stored", Lies("publish", write=lying.refused_and_done)),
    "early": ("reordered", Lies("publish", delay_s=3.0)),
    "passed over": ("skipped", Lies("poll", page=lying.without_a_middle)),
    "bare": ("other_attributes", Lies("poll", page=lying.without_attributes)),
    "mixed up": ("other_attributes", Lies("poll", page=lying.with_attributes_of_the_first)),
    "backward": ("backward", Lies("poll", page=lying.backward)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_broker_is_found(lie):
    name, lies = LIES[lie]
    verdict, _ = play(LogWorkload(), lies, seconds=6)
    assert name in verdict.names, verdict


def test_a_publish_is_not_repeated_after_its_key_may_have_expired():
    keyed = LogWorkload((publishers.keyed,), (readers.paging,))
    seldom = replace(SCALE, publishers=4, pause_s=400.0)
    verdict, calls = play(keyed, seconds=2 * 3600, scale=seldom)
    assert verdict.is_valid, verdict
    assert any(call.told.get("replayed") for call in of(calls, "publish") if call.is_ok)
