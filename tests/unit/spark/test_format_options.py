import pickle
import re

import pytest

from broker.model import LOG_KEY_MIN, Snapshot, log_key_before
from broker.spark.format_options import (
    SINK,
    SOURCE,
    SinkOptions,
    SinkProducer,
    SourceOptions,
    sink_options,
    source_options,
)
from broker.spark.offsets import SourceOffset
from broker.wire.transaction import encode_transaction

NEEDED = {"url": "http://a:1", "topic": "shop/orders"}
ID = "0000019b00000000000a" + "0000019b00000000000b"


def stream(**given: str) -> SourceOptions:
    return source_options({**NEEDED, **given}, streaming=True)


def batch(**given: str) -> SourceOptions:
    return source_options({**NEEDED, **given}, streaming=False)


def sink(**given: str) -> SinkOptions:
    return sink_options({"url": "http://a:1", **given}, streaming=False)


def test_the_defaults_are_those_of_kafka() -> None:
    options = stream()
    assert (options.topic, options.start, options.end) == ("shop/orders", "latest", "latest")
    assert batch().start == "earliest"
    assert options.fail_on_data_loss
    assert (options.messages_max, options.bytes_max, options.messages_min) == (None, None, 0)
    assert options.delay_s_max == 15 * 60
    assert options.settings.url == "http://a:1"
    assert options.settings.deadline_s == 120


def test_names_have_no_case() -> None:
    assert stream(maxoffsetspertrigger="5").messages_max == 5
    assert stream(MAXOFFSETSPERTRIGGER="5", StartingOffsets="EARLIEST").start == "earliest"


def test_an_id_is_a_place_before_its_message() -> None:
    row = bytes.fromhex(ID)[:10]
    assert stream(startingOffsets=ID).start == SourceOffset(log_key_before(row) + LOG_KEY_MIN)
    assert batch(endingOffsets=ID).end == SourceOffset(log_key_before(row) + LOG_KEY_MIN)


def test_a_time_is_the_place_before_the_first_message_that_is_not_older() -> None:
    row = bytes.fromhex("0000019b0000000000" + "00")
    milliseconds = str(int.from_bytes(row[:8], "big"))
    place = SourceOffset(log_key_before(row) + LOG_KEY_MIN, is_time=True)
    assert batch(startingTimestamp=milliseconds).start == place
    assert batch(endingTimestamp=milliseconds).end == place


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2min", 120), ("1h", 3600), ("250", 0.25)],
)
def test_a_delay_has_a_unit_or_is_of_milliseconds(text: str, seconds: float) -> None:
    assert stream(maxTriggerDelay=text).delay_s_max == seconds


def test_heart_beats_come_only_if_they_are_asked_for() -> None:
    assert stream().beat_interval_s is None
    assert stream(heartbeatInterval="2s").beat_interval_s == 2
    assert stream(heartbeatinterval="500ms").beat_interval_s == 0.5


def test_the_settings_of_the_client_are_passed_through() -> None:
    given = {"tms.namespace": "shop", "tms.follow_leaders": "false", "tms.deadline_s": "2.5"}
    settings = stream(tokenFile="/run/token", **given).settings
    assert (settings.namespace, settings.follow_leaders, settings.deadline_s) == (
        "shop",
        False,
        2.5,
    )
    assert settings.token_file == "/run/token"
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize("name", ["token", "Token", "tms.token"])
def test_a_token_is_refused_as_an_option_and_not_shown(name: str) -> None:
    with pytest.raises(ValueError, match="A token is no option") as refused:
        stream(**{name: "canary-4f9c"})
    assert "canary" not in str(refused.value)


def test_a_transaction_reads_by_its_snapshot() -> None:
    snapshot = Snapshot(transaction_id=9, read_pointer=5, in_progress=[3])
    text = encode_transaction(snapshot).hex()
    assert batch(isolation="transactional", snapshot=text).snapshot == snapshot


def test_a_sink_needs_no_topic_and_accepts_sparks_own_options() -> None:
    options = sink(checkpointlocation="/x", queryname="q")
    assert (options.topic, options.producer) == (None, None)
    assert sink(dedupKey="load/7/12").producer == SinkProducer("load/7", 12)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingofset": "latest"}, "does not know the option 'startingofset'"),
        ({"tms.deadline": "1"}, "tms.deadline_s"),
        ({"startingOffsets": "newest"}, "earliest, latest or the 40 hex digits"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingTimestamp": "0", "startingOffsets": "latest"}, "not both"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"pushDownFilters": "true"}, "pushDownFilters is for batch queries"),
        ({"maxOffsetsPerTrigger": "0"}, "whole number from 1"),
        ({"maxOffsetsPerTrigger": "-1"}, "whole number from 1"),
        ({"maxBytesPerTrigger": "1e6"}, "whole number from 1"),
        ({"maxTriggerDelay": "soon"}, "a duration, such as 500ms"),
        ({"heartbeatInterval": "often"}, "a duration, such as 500ms"),
        ({"heartbeatInterval": "0s"}, "a duration above 0"),
        ({"failOnDataLoss": "1"}, "true or false"),
        ({"isolation": "snapshot"}, "none or transactional"),
        ({"isolation": "transactional"}, "needs the option snapshot"),
        ({"snapshot": "00"}, "with isolation=transactional only"),
        ({"isolation": "transactional", "snapshot": "zz"}, "a transaction's snapshot in hex"),
        ({"url": " "}, "needs the option url"),
        ({"topic": ""}, "needs the option topic"),
        ({"tms.deadline_s": "-1"}, "deadline_s can't be -1.0"),
        ({"tms.deadline_s": "long"}, "give a number"),
    ],
)
def test_a_bad_option_is_refused_with_advice(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        stream(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "would read nothing"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streaming queries"),
        ({"heartbeatInterval": "2s"}, "heartbeatInterval is for streaming queries"),
        ({"endingOffsets": "earliest"}, "latest or the 40 hex digits"),
        ({"endingTimestamp": "0", "endingOffsets": "latest"}, "not both"),
    ],
)
def test_a_batch_query_refuses_unsupported_options(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        batch(**given)


@pytest.mark.parametrize("key", ["load", "/5", "load/", "load/-1", "load/x"])
def test_a_key_of_a_batch_has_an_id_and_a_number(key: str) -> None:
    with pytest.raises(ValueError, match="dedupKey can't be"):
        sink(dedupKey=key)


def test_a_stream_is_known_by_its_query() -> None:
    with pytest.raises(ValueError, match=r"dedupKey is for df\.write"):
        sink_options({"url": "http://a:1", "dedupKey": "a/1"}, streaming=True)


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="reads") as told:
        stream(oops="1")
    assert all(name in str(told.value) for name in SOURCE)
    with pytest.raises(ValueError, match="writes") as told:
        sink(startingOffsets="latest")
    assert all(name in str(told.value) for name in SINK)
