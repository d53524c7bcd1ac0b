"""Streams whose functions are SQL: Spark runs them on columns, and no record becomes an object of Python.

Such a stream is a frame with the columns of KEPT beside its values. The SQL of a function sees the fields of a
struct, and ``value``, ``key`` and, behind windows, ``window``::

    _beat   true if the row is a beat, and no record
    _at     the message's id
    _time   event time
    _key    the key
    _window the window of a result
    value   the value
    _error  of a message that can't be decoded: its payload; of a record without a time: its value; else null
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType

from broker.moments import MOMENT_MAX_MS, SECONDS
from broker.streams import graph
from broker.streams.serdes import Bytes, Json, Text
from broker.streams.stateless_steps import TIME_MS_MIN
from broker.streams.windows import SessionWindow, Sliding, Windows

KEPT: Final = ("_beat", "_at", "_time", "_key", "_window")
_CORRUPT: Final = "_corrupt"
_VALUE: Final = "value"


def decoded(source: graph.Source, frame: DataFrame, *, keeps_payload: bool) -> DataFrame:
    """Return a source's messages as values; ``_error`` is not null for messages that can't be decoded."""
    time = sf.current_timestamp() if source.is_processing_time else sf.col("timestamp")
    payload = sf.col("value")
    kept = (
        payload.isNull().alias("_beat"),
        sf.col("id").alias("_at"),
        time.alias("_time"),
        sf.lit(None).cast("string").alias("_key"),
        sf.lit(None).cast("struct<start: timestamp, end: timestamp>").alias("_window"),
        payload.alias("_payload"),
    )
    if isinstance(source.serde, Json):
        schema = f"{source.serde.schema}, {_CORRUPT} STRING"
        options = {"columnNameOfCorruptRecord": _CORRUPT}
        parsed = frame.select(
            *kept, sf.from_json(_once(payload.cast("string")), schema, options).alias(_VALUE)
        )
        wrong = sf.col(f"{_VALUE}.{_CORRUPT}").isNotNull() | sf.col(_VALUE).isNull()
        value = _struct_without(parsed, _CORRUPT)
    elif isinstance(source.serde, Text):
        parsed = frame.select(*kept, payload.cast("string").alias(_VALUE))
        wrong, value = ~sf.expr("is_valid_utf8(CAST(_payload AS STRING))"), sf.col(_VALUE)
    else:
        parsed = frame.select(*kept, payload.alias(_VALUE))
        wrong, value = sf.lit(False), sf.col(_VALUE)
    # Without a topic for letters no operator reads the payload, so Spark need not carry it.
    shown_payload = sf.col("_payload") if keeps_payload else sf.lit(b"")
    error = sf.when(~sf.col("_beat") & wrong, shown_payload)
    return parsed.select(*KEPT, value.alias(_VALUE), error.alias("_error"))


def _once(column: Column) -> Column:
    """Return a column with a value that Spark computes once for each row.

    Spark's optimizer moves filters below the expressions that they test, and repeats an expression at each use. So
    it would parse a message again for every field that a function reads. The optimizer does not repeat an expression
    that is not deterministic. The number of a partition is such an expression.
    """
    return sf.when(sf.spark_partition_id() >= 0, column)


def _struct_without(frame: DataFrame, name: str) -> Column:
    """Return the value without a field. Of a null it makes a struct of nulls, which no record has as its value."""
    kind = frame.schema[_VALUE].dataType
    assert isinstance(kind, StructType)
    value = sf.col(_VALUE)
    return sf.struct(*(value.getField(each).alias(each) for each in kind.names if each != name))


class Fault(NamedTuple):
    """A record that fails: the reason of its letter, and the text of its error."""

    reason: str
    error: str


UNREADABLE: Final = Fault("decode", "the message does not fit the schema")
TIMELESS: Final = Fault("error", "the record's time is null, or outside the years 1 to 9999")


def without_errors(
    given: DataFrame, operator: graph.Operator, job: graph.Graph, fault: Fault, *, is_owner: bool
) -> tuple[DataFrame, list[DataFrame]]:
    """Return the records whose ``_error`` is null, and the letters of the others if ``is_owner``.

    Without a topic for letters the first such record makes the query fail.
    """
    is_sound = sf.col("_error").isNull()
    if job.dead_letters is None:
        text = sf.concat(
            sf.lit(f"{operator.name} failed at the message "),
            sf.lower(sf.hex("_at")),
            sf.lit(
                f" ({fault.reason}): {fault.error}. Give the builder dead_letters=TOPIC to go on without such records."
            ),
        )
        failed = sf.raise_error(text).cast("boolean")
        return given.where(sf.when(is_sound, sf.lit(True)).otherwise(failed)).drop("_error"), []
    letters = given.where(~is_sound).select(
        sf.lit(job.dead_letters).alias("topic"),
        sf.col("_error").alias("value"),
        sf.lit(None).cast("binary").alias("key"),
        headers_of(
            reason=fault.reason,
            job=job.job_id,
            operator=operator.name,
            error=fault.error,
            stack="",
            id=sf.lower(sf.hex("_at")),
        ).alias("headers"),
    )
    return given.where(is_sound).drop("_error"), [letters] if is_owner else []


def headers_of(**given: str | Column) -> Column:
    """Return the headers of a letter."""
    pairs: list[Column] = []
    for name, value in given.items():
        column = sf.lit(value) if isinstance(value, str) else value
        pairs += [sf.lit(name), column.cast("binary")]
    return sf.create_map(*pairs)


def _opened(frame: DataFrame) -> DataFrame:
    """Return a frame with the fields of its values as columns, for the SQL of a function."""
    value = frame.schema[_VALUE].dataType
    fields = value.names if isinstance(value, StructType) else []
    columns = [sf.col(f"{_VALUE}.`{name}`").alias(name) for name in fields if name not in KEPT]
    beside = {"value": _VALUE, "key": "_key", "window": "_window"}
    columns += [sf.col(of).alias(name) for name, of in beside.items() if name not in fields]
    if _VALUE in fields:  # In SQL ``value`` means this field. The whole value needs another name.
        columns.append(sf.col(_VALUE).alias("_value"))
    return frame.select(*KEPT, *columns)


def _whole(frame: DataFrame) -> Column:
    return sf.col("_value" if "_value" in frame.columns else _VALUE)


def stepped(frame: DataFrame, step: graph.Stateless) -> DataFrame:
    """Return the frame behind a step whose function is SQL.

    Behind ``select_timestamp`` it has ``_error``: the value of a record without a time, else null.
    """
    sql = str(step.function)
    opened = _opened(frame)
    value = _whole(opened)
    beat = sf.col("_beat")
    match step.kind:
        case "filter":
            return opened.where(beat | sf.expr(sql)).select(*KEPT, value.alias(_VALUE))
        case "map" | "to_stream":
            given = opened.select(*KEPT, sf.expr(sql).alias(_VALUE))
            return given.where(beat | sf.col(_VALUE).isNotNull())
        case "flat_map":
            several = sf.expr(f"CASE WHEN _beat THEN array(NULL) ELSE ({sql}) END")
            given = opened.select(*KEPT, sf.explode(several).alias(_VALUE))
            return given.where(beat | sf.col(_VALUE).isNotNull())
        case "key_by":
            others = [name for name in KEPT if name != "_key"]
            return opened.select(*others, sf.expr(sql).alias("_key"), value.alias(_VALUE)).select(
                *KEPT, _VALUE
            )
        case "select_timestamp":
            given_time = sf.expr(sql)
            kind = opened.select(given_time.alias("t")).schema["t"].dataType.typeName()
            if kind in ("timestamp_ntz", "date"):
                raise ValueError(
                    f"{step.name}: a {kind.upper()} has no time zone, so it is no moment. Give a TIMESTAMP, for example "
                    "to_utc_timestamp(t, 'Europe/Berlin'), or ms since 1970."
                )
            if kind != "timestamp":
                is_time = given_time.between(TIME_MS_MIN, MOMENT_MAX_MS)
                is_seconds = given_time.between(SECONDS.start, SECONDS.stop - 1)
                given_time = sf.when(is_time & ~is_seconds, sf.timestamp_millis(given_time))
            time = sf.when(beat, sf.col("_time")).otherwise(given_time)
            timed = opened.withColumn("_time", time).select(*KEPT, value.alias(_VALUE))
            lost = ~beat & sf.col("_time").isNull()
            return timed.withColumn("_error", sf.when(lost, _shown(timed)))
        case _:
            pass
    raise ValueError(f"{step.name} takes a function of Python, and not SQL")


def watermarked(frame: DataFrame, time: str, lateness_ms: int) -> DataFrame:
    """Return a frame with a watermark, and without the beats that moved the watermark.

    The filter names the time, so that Spark keeps it behind the watermark. Else Spark would filter out the beats
    before it looks at their times.
    """
    marked = frame.withWatermark(time, f"{lateness_ms} milliseconds")
    return marked.where(f"NOT _beat OR {time} IS NULL")


def window_of(windows: Windows, time: str) -> Column:
    """Return the windows of a time."""
    if isinstance(windows, SessionWindow):
        # Spark makes one session of two records that are exactly a gap apart. ``_end_of`` adds the microsecond again.
        return sf.session_window(time, f"{windows.gap_ms * 1000 - 1} microseconds")
    size, slide = f"{windows.size_ms} milliseconds", f"{windows.slide_ms} milliseconds"
    return sf.window(time, size, slide)


def _end_of(windows: Windows, bounds: str) -> Column:
    """Return the end of the windows of ``window_of``."""
    end = sf.col(f"{bounds}.end")
    if isinstance(windows, SessionWindow):
        return end + sf.expr("INTERVAL 1 MICROSECOND")
    return end


Late = Sequence[tuple[DataFrame, int]]
"""Frames with the same columns, each with its lateness in ms."""


def _together(frames: Late) -> DataFrame:
    """Return the union of frames, each with its own watermark; Spark uses the slowest one."""
    marked = [watermarked(frame, "_time", lateness_ms) for frame, lateness_ms in frames]
    return reduce(DataFrame.unionByName, marked)


def aggregated(frames: Late, operator: graph.Aggregate) -> DataFrame:
    """Return the result of each key and window, once the window is closed."""
    assert operator.windows is not None
    marked = _together([(_opened(frame), lateness_ms) for frame, lateness_ms in frames])
    selected = sf.expr(str(operator.select)) if operator.select is not None else _whole(marked)
    if operator.kind == "count":
        result = sf.count("*") if operator.select is None else sf.count(selected)
    else:
        result = {"sum": sf.sum, "avg": sf.avg}[operator.kind](selected)
    grouped = marked.groupBy(window_of(operator.windows, "_time").alias("_bounds"), "_key")
    start, end = sf.col("_bounds.start"), _end_of(operator.windows, "_bounds")
    return (
        grouped.agg(result.alias(_VALUE))
        .select(
            sf.lit(False).alias("_beat"),
            sf.lit(b"").alias("_at"),
            (end - sf.expr("INTERVAL 1 MILLISECOND")).alias("_time"),
            sf.col("_key"),
            sf.struct(start.alias("start"), end.alias("end")).alias("_window"),
            sf.col(_VALUE),
        )
        .where(
            sf.col(_VALUE).isNotNull() & (sf.lit(operator.kind != "count") | (sf.col(_VALUE) > 0))
        )
    )


def joined(left: Late, right: Late, join: graph.Join) -> DataFrame:
    """Return the pairs of each window and key, in the columns ``left`` and ``right``."""
    assert isinstance(join.windows, Sliding)
    sides = [
        _together(frames).select(
            window_of(join.windows, "_time").alias(f"_{side}_bounds"),
            sf.col("_key").alias(f"_{side}_key"),
            sf.col("_at").alias(f"_{side}_at"),
            sf.col(_VALUE).alias(side),
        )
        for frames, side in ((left, "left"), (right, "right"))
    ]
    same = (sf.col("_left_key").eqNullSafe(sf.col("_right_key"))) & (
        sf.col("_left_bounds") == sf.col("_right_bounds")
    )
    return sides[0].join(sides[1], same, "left_outer" if join.is_left else "inner")


def paired(pairs: DataFrame, function: str) -> DataFrame:
    """Return the values that the SQL of a join makes of pairs."""
    start, end = sf.col("_left_bounds.start"), sf.col("_left_bounds.end")
    return pairs.select(
        sf.lit(False).alias("_beat"),
        sf.col("_left_at").alias("_at"),
        (end - sf.expr("INTERVAL 1 MILLISECOND")).alias("_time"),
        sf.col("_left_key").cast("string").alias("_key"),
        sf.struct(start.alias("start"), end.alias("end")).alias("_window"),
        sf.expr(function).alias(_VALUE),
    ).where(sf.col(_VALUE).isNotNull())


def messages(frame: DataFrame, sink: graph.Sink) -> DataFrame:
    """Return values as the messages of a sink: topic, value and, if the sink has keys, key."""
    value = sf.col(_VALUE)
    if isinstance(sink.serde, Bytes):
        payload = value.cast("binary")
    elif isinstance(sink.serde, Text):
        payload = value.cast("string").cast("binary")
    else:
        payload = _json(frame)
    columns = {"topic": sf.lit(sink.topic), "value": payload}
    if sink.topic is None:
        columns |= {
            "key": sf.lit(None).cast("binary"),
            "headers": sf.lit(None).cast("map<string, binary>"),
        }
    if sink.has_keys:
        key_kind = frame.schema["_key"].dataType
        text = (
            sf.col("_key").cast("string")
            if not isinstance(key_kind, StructType | ArrayType | MapType)
            else sf.to_json("_key")
        )
        columns["key"] = sf.col("_key") if key_kind.typeName() == "binary" else text.cast("binary")
    given = (column.alias(name) for name, column in columns.items())
    return frame.where(~sf.col("_beat")).select(*given)


def _json(frame: DataFrame) -> Column:
    """Return values as JSON."""
    value = sf.col(_VALUE)
    if isinstance(frame.schema[_VALUE].dataType, StructType | ArrayType | MapType):
        return sf.to_json(value, {"ignoreNullFields": "false"}).cast("binary")
    inside = sf.to_json(sf.array(value), {"ignoreNullFields": "false"})
    return sf.substring(inside, sf.lit(2), sf.length(inside) - 2).cast("binary")


def _shown(frame: DataFrame) -> Column:
    """Return values as the payload of a letter: text and bytes as they are, others as JSON; never null."""
    is_plain = frame.schema[_VALUE].dataType.typeName() in {"binary", "string"}
    shown = sf.col(_VALUE).cast("binary") if is_plain else _json(frame)
    return sf.coalesce(shown, sf.lit(b""))


def as_values(frame: DataFrame) -> DataFrame:
    """Return a frame in the form that passes.read_values takes."""
    kind = sf.when(sf.col("_beat"), sf.lit(1)).otherwise(sf.lit(0)).cast("byte")
    window = sf.col("_window")
    return frame.select(
        kind.alias("kind"),
        sf.col("_at").alias("at"),
        sf.unix_millis("_time").alias("time"),
        sf.col("_key").alias("key"),
        sf.col(_VALUE).alias("value"),
        sf.unix_millis(window["start"]).alias("start"),
        sf.unix_millis(window["end"]).alias("end"),
    )
