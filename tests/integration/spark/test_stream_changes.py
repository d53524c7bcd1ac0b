"""Jobs that do not start in a new form, and the output of a print."""

import pytest
from pyspark.errors import StreamingQueryException

from broker.streams import Job, Json, StreamBuilder
from tests.integration.spark.bed import Bed

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_form_that_never_committed_a_batch_can_be_taken_back(bed: Bed) -> None:
    def job(*, is_new: bool, fails: bool = False) -> Job:
        builder = StreamBuilder("deployed")
        words = builder.source(bed.topic("in"), Json()).map(lambda word: 1 / 0 if fails else word)
        counts = words.key_by(str).count()
        counts = counts.sum() if is_new else counts
        counts.to_stream().sink(bed.topic("out"), Json(), name="out")
        return builder.build()

    bed.publish("in", "a")
    bed.run(job(is_new=False))
    bed.publish("in", "a")
    with pytest.raises(StreamingQueryException):
        bed.run(job(is_new=True, fails=True))
    bed.run(job(is_new=False))
    assert bed.read("out") == [["a", 1], ["a", 2]]


def test_a_key_that_is_no_text_is_printed(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamBuilder("printed")
    builder.source(bed.topic("in"), Json()).key_by(lambda _: b"\xff").count().print()
    bed.publish("in", "a")
    bed.run(builder.build())
    assert capsys.readouterr().out == "\\xff\t1\n"
