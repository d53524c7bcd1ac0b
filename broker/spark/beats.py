"""Heart-beats: rows without a message, by which event time goes on while a topic is silent.

Spark's watermark moves only when rows come, so the last window of a silent topic would stay open. The source
knows more than that no row has come: the broker gives later messages later times. When it says that nothing
lies behind the latest id, its clock has passed that id's time. From then on the driver counts how much time
goes by::

    latest id          the broker says: nothing behind it         a beat
    ──┼──────────────────────────┼───────────────────────────────────┼──────> the broker's clock
      └─ its time, or the beat   └─ told: the silence begins         └─ asked again, and still nothing
         that the query had                                             beat = that time + (asked - told)

So a beat is never above the broker's clock, whatever the driver's clock says. It ends where the last question
began: a publish that begins after it gets a later time. Three things can still bring a message that is a little
older than a beat, and the delay of the watermark is for them: a publish that had its id and was not on disk yet,
a next leader whose clock is behind, and ids that ran ahead of the clock (``id_lead_ms_max``).

A restart forgets how long a silence was. It counts anew from the beat in its checkpoint, which the broker's
clock had passed, too. So beats go on at once, and never back.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from broker.model import MessageId, timestamp_of


class Beat(NamedTuple):
    """A heart-beat: the last id that was read before it, and its time, in ms since 1970."""

    topic: str
    id: MessageId
    time_ms: int


class Silence(NamedTuple):
    """That nothing came behind the id ``latest``, since the broker first said so.

    Attributes:
        latest: the latest id of the topic.
        told_s: when the broker had first said so, by the driver's monotonic clock.
        passed_ms: a time that the broker's clock had passed then, in ms since 1970.
        due_s: when the next beat is due, by the same clock as ``told_s``.
    """

    latest: MessageId
    told_s: float
    passed_ms: int
    due_s: float

    @classmethod
    def begin(
        cls, latest: MessageId, told_s: float, *, interval_s: float, beat_ms: int = 0
    ) -> Silence:
        """Return a silence that begins now, in a query whose last beat was at ``beat_ms``; 0: none."""
        return cls(latest, told_s, max(timestamp_of(latest), beat_ms), told_s + interval_s)

    def beat_ms(self, asked_s: float) -> int:
        """Return the time of a beat, if nothing had come when the broker was asked at ``asked_s``."""
        return self.passed_ms + int((asked_s - self.told_s) * 1000)


def check_nullable(schema: pa.Schema) -> None:
    """Refuse columns that can't be null. Spark would leave out filters that tell a beat by its nulls.

    Raises:
        ValueError: a column is ``NOT NULL``.
    """
    for field in schema:
        if not field.nullable:
            raise ValueError(
                f"With heartbeatInterval the column {field.name} can't be NOT NULL: a heart-beat is a row "
                "without a message. Leave NOT NULL out of .schema(…), or leave out heartbeatInterval."
            )


def beat_batch(beat: Beat, schema: pa.Schema) -> pa.RecordBatch:
    """Return a heart-beat as one row with the columns of a schema; those of a message are null."""
    known = {"id": beat.id, "topic": beat.topic, "timestamp": beat.time_ms * 1000}
    columns = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
