import json

from chaos.figures import RunFigures, figures_of, longest_gap_s
from chaos.history import History
from chaos.run_folder import Judged


class Told:
    """A history whose time the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: int(self.now_s * 1e9))

    def publish(self, at_s: float, topic: str = "a", outcome: str = "ok", count: int = 1) -> None:
        self.now_s = at_s
        payloads = [f"{topic}:{at_s}:{part}" for part in range(count)]
        ending = self.history.invoke("p", "publish", topic, {"payloads": payloads})
        if outcome == "ok":
            ending.ok({"last": ""}, "")
        else:
            getattr(ending, outcome)("why")

    def fault(self, kind: str, **evidence: object) -> None:
        ending = self.history.invoke(f"nemesis {kind}", "fault", "", {"kind": kind})
        ending.ok(evidence)


def test_operations_are_counted_by_outcome() -> None:
    told = Told()
    told.publish(1, count=3)
    told.publish(2, outcome="fail")
    told.publish(3, outcome="unknown")
    figures = figures_of(told.history.calls())
    assert figures.operations == {"publish ok": 1, "publish fail": 1, "publish unknown": 1}
    assert (figures.acknowledged, figures.messages) == (1, 3)


def test_faults_count_only_with_evidence() -> None:
    told = Told()
    told.fault("kill", happened=True, times=4)
    told.fault("kill", happened=False, times=0)
    told.fault("partition", happened=True)
    told.fault("mending", happened=True)
    figures = figures_of(told.history.calls())
    assert figures.faults == {"kill": 2, "partition": 1}
    assert figures.happened == {"kill": 1, "partition": 1}
    assert figures.times == {"kill": 4, "partition": 1}


def test_the_longest_gap_is_within_one_topic() -> None:
    told = Told()
    for at_s, topic in ((1, "a"), (2, "b"), (3, "a"), (9, "b"), (4, "a")):
        told.publish(at_s, topic)
    assert longest_gap_s(told.history.calls()) == 7
    assert longest_gap_s([]) == 0


def test_figures_add_up_and_are_read_again() -> None:
    told = Told()
    told.publish(1)
    told.publish(5)
    told.fault("kill", happened=True, times=2)
    one = figures_of(told.history.calls())
    one.seconds = 60
    one.silent_well_s = 0.5
    whole = RunFigures()
    whole.add(one)
    whole.add(one)
    assert (whole.acknowledged, whole.seconds, whole.unavailable_s) == (4, 120, 4)
    assert whole.times == {"kill": 4}
    written = json.loads(json.dumps(Judged(whole).as_json()))
    assert written["longest_silent_when_well_s"] == 0.5
    assert RunFigures.from_json(written) == whole
