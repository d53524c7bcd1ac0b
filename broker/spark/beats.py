"""Heart-beats: rows without a message, which move event time on while a topic is silent.

Spark's watermark moves only when rows come. So without heart-beats the last window of a silent topic stays open.

The broker gives later messages later times. When the broker answers that there is no message behind the latest id, its
clock has passed that id's time. From then on the driver measures how much time passes::

    latest id          the broker says: nothing behind it         a beat
    ──┼──────────────────────────┼───────────────────────────────────┼──────> the broker's clock
      └─ its time, or the beat   └─ told: the silence begins         └─ asked again, and still nothing
         that the query had                                             beat = that time + (asked - told)

So a beat is never above the broker's clock, and it does not depend on the driver's wall clock. The time of a beat is
the moment at which the driver sent its last question. A publish that begins later gets a later time.

In three cases a message can still be a little older than a beat, and the delay of the watermark is for them:

* a publish that had its id, but was not on disk yet;
* a next leader whose clock is behind;
* ids that ran ahead of the clock (``id_lead_ms_max``).

A restarted driver does not know how long a silence was. It measures again from the beat in its checkpoint, and the
broker's clock had passed that beat, too. So beats go on at once, and never go back.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from broker.model import MessageId, timestamp_of


class Beat(NamedTuple):
    """A heart-beat: the last id that the query read before it, and its time, in ms since 1970."""

    topic: str
    id: MessageId
    time_ms: int


class Silence(NamedTuple):
    """A time in which no message has come behind the id ``latest``.

    Attributes:
        latest: the latest id of the topic.
        told_s: when the broker first answered that there is no later message, by the driver's monotonic clock.
        passed_ms: a time that the broker's clock had passed at ``told_s``, in ms since 1970.
        due_s: when the next beat is due, by the driver's monotonic clock.
    """

    latest: MessageId
    told_s: float
    passed_ms: int
    due_s: float

    @classmethod
    def begin(
        cls, latest: MessageId, told_s: float, *, interval_s: float, beat_ms: int = 0
    ) -> Silence:
        """Return a silence that begins now. ``beat_ms`` is the query's last beat; 0: it had none."""
        return cls(latest, told_s, max(timestamp_of(latest), beat_ms), told_s + interval_s)

    def beat_ms(self, asked_s: float) -> int:
        """Return the time of a beat, for a question at ``asked_s`` to which the broker had no later message."""
        return self.passed_ms + int((asked_s - self.told_s) * 1000)


def check_nullable(schema: pa.Schema) -> None:
    """Refuse columns that can't be null.

    Spark drops a filter such as ``value IS NOT NULL`` on a column that can't be null. So it would not filter out beats.

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
    """Return a heart-beat as one row with the columns of a schema; the columns of a message are null."""
    known = {"id": beat.id, "topic": beat.topic, "timestamp": beat.time_ms * 1000}
    columns = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
