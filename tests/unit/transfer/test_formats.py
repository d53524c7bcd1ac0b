from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import TaskFailed
from broker.model import NO_HEADERS, Message, log_key
from broker.transfer.formats import FORMATS, Format, format_of
from broker.transfer.message_records import Contents

HEADERS = {"trace": b"\xff\x00", "empty": b"", "ü": "日本".encode()}
MESSAGES = [
    Message(log_key(1_764_000_000_000 + n, n) + bytes(10), payload, key, headers)
    for n, (payload, key, headers) in enumerate(
        [
            (b"text", None, NO_HEADERS),
            (b"", b"", NO_HEADERS),
            (b"\xff\x00 not text", b"key", HEADERS),
            ("two\nlines \u2028 日本".encode(), b"\xfe", NO_HEADERS),
        ]
    )
]


@pytest.fixture(params=sorted(FORMATS))
def format_(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def contents(messages: Sequence[Message]) -> Contents:
    return Contents().with_all(list(messages))


def written(form: Format, folder: Path, *chunks: Sequence[Message]) -> Path:
    """Write a whole file, as an export does."""
    part, file = folder / "part", folder / "file"
    position = form.append(part, 0, [])
    for chunk in chunks:
        position = form.append(part, position, chunk)
    form.finish(part, position, file)
    form.discard(part)
    assert not part.exists()
    return file


def test_messages_come_back_as_they_were(format_: Format, tmp_path: Path) -> None:
    found = list(format_.read(written(format_, tmp_path, MESSAGES[:1], MESSAGES[1:])))
    assert [(one.payload, one.key, dict(one.headers)) for one in found] == [
        (one.payload, one.key, dict(one.headers)) for one in MESSAGES
    ]
    assert contents(found) == contents(MESSAGES)


def test_a_file_without_messages_is_a_file(format_: Format, tmp_path: Path) -> None:
    assert list(format_.read(written(format_, tmp_path))) == []


def test_bytes_behind_the_recorded_position_are_written_again(
    format_: Format, tmp_path: Path
) -> None:
    part = tmp_path / "part"
    begun = format_.append(part, 0, [])
    position = format_.append(part, begun, MESSAGES[:2])
    format_.append(
        part, position, MESSAGES[:1]
    )  # The export is killed before it records that position.
    position = format_.append(part, position, MESSAGES[2:])
    format_.finish(part, position, tmp_path / "file")
    assert contents(list(format_.read(tmp_path / "file"))) == contents(MESSAGES)


def test_half_a_chunk_is_written_again(format_: Format, tmp_path: Path) -> None:
    part = tmp_path / "part"
    position = format_.append(part, 0, [])
    position = format_.append(part, position, MESSAGES[:2])
    half = part / f"{position:08}" if part.is_dir() else part
    with half.open("ab") as file:
        file.write(b"half of a chunk")
    position = format_.append(part, position, MESSAGES[2:])
    format_.finish(part, position, tmp_path / "file")
    assert contents(list(format_.read(tmp_path / "file"))) == contents(MESSAGES)


def test_a_damaged_file_is_named_and_never_read_as_a_shorter_one(
    format_: Format, tmp_path: Path
) -> None:
    file = written(format_, tmp_path, MESSAGES * 50)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(TaskFailed, match="file"):
        list(format_.read(file))


FOREIGN = {
    "text for headers": {"headers": ["text"]},
    "lists for headers": {"headers": [["a", "b"]]},
    "records for headers": {"headers": [[{"key": "a", "value": b"b"}]]},
    "a time beyond the calendar": {"payload": [1 << 62]},
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_column_of_another_kind_is_named_and_never_read_as_another_value(
    tmp_path: Path, foreign: str
) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    table = arrow.table({"payload": [b"a"], **FOREIGN[foreign]})
    if "payload" in FOREIGN[foreign]:
        table = table.cast(arrow.schema([("payload", arrow.timestamp("us"))]))
    parquet.write_table(table, file)
    with pytest.raises(TaskFailed, match=r"a.parquet, after row 0: "):
        list(FORMATS["parquet"].read(file))


def test_the_format_follows_the_ending_or_the_option() -> None:
    assert format_of(Path("a.JSONL"), None).name == "jsonl"
    assert format_of(Path("a.ndjson"), None).name == "jsonl"
    assert format_of(Path("a.avro"), None).name == "avro"
    assert format_of(Path("a.parquet"), None).name == "parquet"
    assert format_of(Path("a.parquet"), "avro").name == "avro"
    with pytest.raises(ValueError, match="--format"):
        format_of(Path("a.txt"), None)


@pytest.mark.parametrize(("name", "package"), [("avro", "fastavro"), ("parquet", "pyarrow")])
def test_a_missing_package_is_named_with_the_extra(name: str, package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from broker.transfer.formats import format_of\n"
        "from pathlib import Path\n"
        f"try:\n    format_of(Path('a'), {name!r})\n"
        "except Exception as error:\n    print(error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert package in done.stdout
    assert "tms-broker[export]" in done.stdout


@pytest.mark.parametrize(
    ("line", "payload", "key", "headers"),
    [
        ('{"payload": "café"}', "café".encode(), None, {}),
        ('{"value": "a", "key": "k"}', b"a", b"k", {}),
        (
            '{"value": {"base64": "/w=="}, "headers": {"h": {"base64": ""}}}',
            b"\xff",
            None,
            {"h": b""},
        ),
        ('{"payload": "/w==", "encoding": "base64", "key": null}', b"\xff", None, {}),
    ],
)
def test_lines_that_people_write(
    tmp_path: Path, line: str, payload: bytes, key: bytes | None, headers: dict[str, bytes]
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(line + "\n\n", encoding="utf-8")
    (message,) = FORMATS["jsonl"].read(file)
    assert (message.payload, message.key, dict(message.headers)) == (payload, key, headers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2"),
        ('{"payload": ' + "[" * 100_000 + "}", "line 2: the JSON is nested too deeply"),
        ('{"payload": [' + "{}," * 500_000 + "{}]}", "more than 500000 lists and objects"),
        ("[]", "not a JSON object"),
        ("{}", "payload"),
        ('{"payload": "a", "value": "a"}', "both"),
        ('{"payload": "a", "ky": "a"}', "'ky'"),
        ('{"payload": 1}', "payload"),
        ('{"payload": "a", "encoding": "hex"}', "encoding"),
        ('{"payload": "!", "encoding": "base64"}', "payload"),
        ('{"value": {"base64": "a"}}', "value"),
        ('{"value": "a", "headers": []}', "headers"),
        ('{"value": "a", "headers": {"a": 1}}', "headers.a"),
    ],
)
def test_a_line_that_is_no_message_is_named(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"payload": "fine"}\n' + line + "\n")
    with pytest.raises(TaskFailed, match="line 2") as refused:
        list(FORMATS["jsonl"].read(file))
    assert says in refused.value.message


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
messages = st.builds(
    Message,
    st.just(bytes(20)),
    st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.dictionaries(texts, st.binary(max_size=5), max_size=3),
)


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(st.lists(st.lists(messages, max_size=4), max_size=4))
def test_any_messages_come_back(
    format_: Format, tmp_path_factory: pytest.TempPathFactory, chunks: list[list[Message]]
) -> None:
    file = written(format_, tmp_path_factory.mktemp("any"), *chunks)
    assert contents(list(format_.read(file))) == contents([one for some in chunks for one in some])


def test_equal_contents_alone_have_equal_hashes() -> None:
    plain = Message(bytes(20), b"ab")
    others = [
        [Message(bytes(20), b"a"), Message(bytes(20), b"b")],
        [plain._replace(key=b"")],
        [plain._replace(headers={"ab": b""})],
        [plain._replace(headers={"a": b"b"})],
        [plain, plain],
        [],
    ]
    hashes = {contents(one).hash for one in [[plain], *others]}
    assert len(hashes) == 1 + len(others)
    assert contents([plain]) == contents([plain._replace(id=b"\1" * 20)])
    several = plain._replace(headers={"a": b"1", "b": b"2"})
    assert contents([several]) == contents([several._replace(headers={"b": b"2", "a": b"1"})])


def test_contents_are_written_and_read_again() -> None:
    found = contents(MESSAGES)
    assert Contents.of(json.loads(json.dumps(found.as_json()))) == found
