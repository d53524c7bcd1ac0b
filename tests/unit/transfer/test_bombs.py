"""Small files that would take much memory or time: each is refused with its place, before it is held."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import resource
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from broker import small_files as files
from broker.errors import TaskFailed
from broker.transfer import avro_file, jsonlines, parquet_file
from broker.transfer.avro_file import AvroFile
from broker.transfer.formats import FORMATS, JsonLines

MAGIC, SYNC = b"Obj\x01", bytes(range(16))
HUGE = 1 << 60
PAYLOAD = {"name": "payload", "type": "bytes"}
TIME = {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}}


def number(value: int) -> bytes:
    """Return a number as Avro writes it."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def container(fields: list[Any], count: int, data: bytes, codec: bytes = b"null") -> bytes:
    schema = json.dumps({"type": "record", "name": "Message", "fields": fields}).encode()
    return raw_container(schema, number(count) + text(data) + SYNC, codec)


def raw_container(schema: bytes, blocks: bytes, codec: bytes = b"null") -> bytes:
    meta = number(2) + text(b"avro.schema") + text(schema) + text(b"avro.codec") + text(codec)
    return MAGIC + meta + number(0) + SYNC + blocks


def nested(depth: int) -> Any:
    kind: Any = "bytes"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def doubling(depth: int) -> Any:
    """A record type of two values of another such type, and so on: 2 to the depth, without a byte."""
    kind: Any = {"type": "record", "name": "T0", "fields": [{"name": "z", "type": "null"}]}
    for each in range(1, depth):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"T{each - 1}"}]
        kind = {"type": "record", "name": f"T{each}", "fields": fields}
    return kind


NULLS = {"name": "more", "type": {"type": "array", "items": "null"}}
NOTHING = {"name": "payload", "type": {"type": "fixed", "name": "F", "size": 0}}
LINKED: Any = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
BOMBS = {
    "messages of no bytes": container([NOTHING], HUGE, b""),
    "values of no bytes": container([PAYLOAD, NULLS], 1, text(b"") + number(HUGE) + number(0)),
    "more records than bytes": container([PAYLOAD], HUGE, text(b"")),
    "fewer than no records": container([PAYLOAD], -1, text(b"")),
    "a block longer than the file": raw_container(
        json.dumps({"type": "record", "name": "M", "fields": [PAYLOAD]}).encode(),
        number(1) + number(HUGE),
    ),
    "snappy": container([PAYLOAD], 1, b"\xff\xff\xff\xff\x0f\x00" + bytes(4), b"snappy"),
    "an unknown codec": container([PAYLOAD], 1, b"", b"brotli"),
    "a deep schema": container([PAYLOAD, {"name": "more", "type": nested(200)}], 1, text(b"")),
    "deeper JSON": raw_container(b"[" * 100_000, b""),
    "a schema that refers to itself": container(
        [PAYLOAD, {"name": "more", "type": LINKED}], 1, text(b"") + b"\x02" * 100_000
    ),
    "two to the sixtieth": container([PAYLOAD, {"name": "z", "type": doubling(60)}], 1, text(b"")),
    "a list for a payload": container([{"name": "payload", "type": nested(1)}], 1, number(0)),
    "a map for a header": container(
        [PAYLOAD, {"name": "headers", "type": {"type": "map", "values": nested(1)}}], 1, bytes(2)
    ),
    "text for records": raw_container(b'"string"', number(1) + text(text(b"payload")) + SYNC),
    "a long name": MAGIC + number(1) + number(HUGE),
    "many names": MAGIC + number(HUGE) + text(b"") * 2,
    "no Avro": b"something else",
    "nothing": b"",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_avro_bomb_is_refused_with_its_place(bomb: str, tmp_path: Path) -> None:
    file = tmp_path / "bomb.avro"
    file.write_bytes(BOMBS[bomb])
    assert len(BOMBS[bomb]) < 400_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TaskFailed, match=str(file)):
        list(AvroFile().read(file))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 220 * 1024, f"{grown // 1024} MB"


MANY = 8_000_000
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20_000_000, "scale": 2}
MORE = {
    "a long list": (nested(1), number(MANY) + bytes(MANY) + number(0)),
    "lists of lists": (nested(2), number(MANY // 3) + b"\x02\x00\x00" * (MANY // 3) + number(0)),
    "a long decimal": (DECIMAL, text(b"\x7f" * MANY)),
    "a time beyond the calendar": (TIME["type"], number(1 << 61)),
}


@pytest.mark.parametrize("more", MORE)
def test_avro_s_other_fields_become_no_values(more: str, tmp_path: Path) -> None:
    """Of 8 kB a list of eight million objects was made, of 80 kB one of 2 GB, and for a decimal a number, for hours."""
    kind, data = MORE[more]
    fields = [{"name": "more", "type": kind}, PAYLOAD]
    file = tmp_path / "more.avro"
    file.write_bytes(container(fields, 1, deflated(data + text(b"x")), b"deflate"))
    tracemalloc.start()
    try:
        assert [one.payload for one in AvroFile().read(file)] == [b"x"]
        assert tracemalloc.get_traced_memory()[1] < 12 * MANY
    finally:
        tracemalloc.stop()


def test_an_avro_message_of_very_many_headers_is_refused(tmp_path: Path) -> None:
    headers = {"name": "headers", "type": ["null", {"type": "map", "values": ["null", "bytes"]}]}
    file = tmp_path / "headers.avro"

    def messages(*counts: int) -> bytes:
        each = [
            number(1)
            + number(count)
            + b"".join(text(b"%d" % n) + b"\x02\x02v" for n in range(count))
            for count in counts
        ]
        return b"".join(text(b"x") + one + number(0) for one in each)

    file.write_bytes(container([PAYLOAD, headers], 3, messages(100, 100, 101)))
    read = AvroFile().read(file)
    assert [len(next(read).headers) for _ in range(2)] == [100, 100]
    with pytest.raises(TaskFailed, match=r"after record 2: headers: .* may have 100"):
        next(read)


def test_a_long_schema_of_many_blocks_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed for each of these 8,000 blocks, this file of 600 kB takes minutes."""
    parsed, parse = [], fastavro.reader
    monkeypatch.setattr(fastavro, "reader", lambda *given: parsed.append(1) or parse(*given))
    fields = [PAYLOAD, *({"name": f"more{each}", "type": "bytes"} for each in range(10_000))]
    schema = json.dumps({"type": "record", "name": "M", "fields": fields}).encode()
    file = tmp_path / "long.avro"
    file.write_bytes(raw_container(schema, (number(0) + text(b"") + SYNC) * 8_000))
    assert (list(AvroFile().read(file)), len(parsed)) == ([], 1)


def deflated(data: bytes) -> bytes:
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return machine.compress(data) + machine.flush()


PACK = {
    "deflate": deflated,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True) + bytes(4),
}


@pytest.mark.parametrize("codec", PACK)
def test_a_block_is_unpacked_to_its_bound_at_most(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_file, "BLOCK_BYTES_MAX", 1 << 20)
    file = tmp_path / "block.avro"
    for size in (1_000_000, 16 << 20):
        data = PACK[codec](text(bytes(size)))
        file.write_bytes(container([PAYLOAD], 1, data, codec.encode()))
        if size < 1 << 20:
            assert [len(one.payload) for one in AvroFile().read(file)] == [size]
            continue
        tracemalloc.start()
        try:
            with pytest.raises(TaskFailed, match="1,048,576"):
                list(AvroFile().read(file))
            assert tracemalloc.get_traced_memory()[1] < 12 << 20, "xz asks for 8 MiB itself"
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_files_of_others_are_read(codec: str, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "Event",
        "namespace": "shop",
        "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "payload", "type": ["null", "string"]},
            {"name": "headers", "type": ["null", {"type": "map", "values": "string"}]},
            {"name": "key", "type": "Kind"},
            {"name": "place", "type": ["null", {"type": "record", "name": "Place", "fields": [
                {"name": "x", "type": "double"}]}]},
        ],
    }  # fmt: skip
    records = [
        {"kind": "a", "tags": ["x"] * n, "payload": "p" * n, "headers": {"h": "v"}, "key": "b",
         "place": {"x": 1.0} if n % 2 else None}
        for n in range(1_000)
    ]  # fmt: skip
    file = tmp_path / "events.avro"
    with file.open("wb") as opened:
        fastavro.writer(opened, fastavro.parse_schema(schema), records, codec=codec)
    found = list(AvroFile().read(file))
    assert [one.payload for one in found] == [b"p" * n for n in range(1_000)]
    assert {(one.key, tuple(one.headers.items())) for one in found} == {(b"b", (("h", b"v"),))}


def table(rows: int, payload: Any, headers: Any = None) -> pa.Table:
    schema = pa.schema([("payload", pa.binary()), ("headers", pa.map_(pa.string(), pa.binary()))])
    columns = {"payload": [payload] * rows, "headers": [headers or []] * rows}
    return pa.table(columns, schema=schema)


READ = """
import resource, sys
from pathlib import Path
from broker.transfer.imports import chunks
from broker.transfer.parquet_file import ParquetFile
import pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    count = sum(len(chunk) for chunk in chunks(ParquetFile().read(Path(sys.argv[1]))))
except Exception as error:
    count = getattr(error, "message", repr(error))
print(count)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def read_in_a_process(file: Path) -> tuple[str, int]:
    """Return how many messages a file has, or the refusal, and how much memory that took, in MB."""
    told = subprocess.run(
        [sys.executable, "-c", READ, str(file)], capture_output=True, text=True, check=True
    )
    *lines, grown = told.stdout.splitlines()
    return " ".join(lines), int(grown) // 1024


def test_a_value_that_many_rows_share_is_held_once(tmp_path: Path) -> None:
    file = tmp_path / "shared.parquet"
    big = bytes(4_000_000)
    parquet.write_table(
        table(100, big, [("h", bytes(16))]),
        file,
        compression="zstd",
        dictionary_pagesize_limit=1 << 30,
    )
    assert file.stat().st_size < 16_384
    told, grown = read_in_a_process(file)
    assert told == "100"
    assert grown < 150


def test_a_header_that_many_rows_share_is_refused_before_it_is_held(tmp_path: Path) -> None:
    file = tmp_path / "headers.parquet"
    headers = [("h", bytes(2_000_000))] * 90
    parquet.write_table(
        table(2, b"x", headers), file, compression="zstd", dictionary_pagesize_limit=1 << 30
    )
    told, grown = read_in_a_process(file)
    assert "headers" in told
    assert grown < 150


def test_a_page_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "page.parquet"
    parquet.write_table(
        table(1, bytes(300_000_000)), file, compression="zstd", use_dictionary=False
    )
    told, grown = read_in_a_process(file)
    assert "bytes" in told
    assert str(file) in told
    assert grown < 150


def test_a_page_whose_size_the_footer_does_not_tell_is_refused(tmp_path: Path) -> None:
    """The footer names few bytes; the page's own header names many."""
    file = tmp_path / "lies.parquet"
    parquet.write_table(
        table(1, bytes(300_000_000)), file, compression="zstd", use_dictionary=False
    )
    with parquet.ParquetFile(file) as opened:
        told = number(opened.metadata.row_group(0).column(0).total_uncompressed_size)
    whole = file.read_bytes()
    head, footer = whole[:100], whole[100:]
    assert told in footer
    file.write_bytes(head + footer.replace(told, b"\xfe\x80\x80\x80\x00"))
    with parquet.ParquetFile(file) as opened:
        assert opened.metadata.row_group(0).column(0).total_uncompressed_size == 63
    refusal, grown = read_in_a_process(file)
    assert "bytes" in refusal
    assert grown < 150


@pytest.mark.parametrize(("column", "told"), [("payload", "20"), ("headers", "DELTA_BYTE_ARRAY")])
def test_values_that_repeat_the_ones_before_are_counted(
    column: str, told: str, tmp_path: Path
) -> None:
    """A file of 1 kB took 4 GB: a value of DELTA_BYTE_ARRAY names how much of the one before it repeats."""
    file = tmp_path / "repeats.parquet"
    big = b"a" * 20_000_000
    whole = table(20, big) if column == "payload" else table(20, b"x", [("h", big)])
    whole = whole.select(["payload"] if column == "payload" else ["payload", "headers"])
    encoding = "DELTA_BYTE_ARRAY"
    parquet.write_table(
        whole, file, compression="zstd", use_dictionary=False, column_encoding=encoding
    )
    assert file.stat().st_size < 16_384
    found, grown = read_in_a_process(file)
    assert told in found
    assert grown < 200


def test_a_page_of_very_many_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of lengths in few bits may name a billion values: pyarrow decodes all lengths at once."""
    monkeypatch.setattr(parquet_file, "VALUES_MAX", 100)
    file = tmp_path / "values.parquet"
    whole = pa.table({"payload": pa.array([b""] * 101, pa.binary())})
    parquet.write_table(
        whole, file, use_dictionary=False, column_encoding="DELTA_LENGTH_BYTE_ARRAY"
    )
    with pytest.raises(TaskFailed, match="a page of 101 values"):
        list(parquet_file.ParquetFile().read(file))


def test_a_page_is_counted_by_few_bytes(tmp_path: Path) -> None:
    """A file of 40 MB may have a million pages: with 1 MiB read for each, its import took minutes."""
    table = pa.table({"payload": pa.array([b"x"] * 2_000, pa.binary())})
    file = tmp_path / "pages.parquet"
    small: Any = {"data_page_size": 1, "write_batch_size": 1, "use_dictionary": False}
    parquet.write_table(table, file, compression="NONE", **small)
    counted = []

    class Counting(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            found = super().read(size)
            counted.append(len(found))
            return found

    with Counting(file) as raw, parquet.ParquetFile(file) as opened:
        assert parquet_file.rows_at_once(raw, opened.metadata, ["payload"])
    assert len(counted) == 2_000
    assert sum(counted) < 2_000 * 1_000


def test_a_row_of_very_many_headers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "many.parquet"
    keys = pa.array(["h"] * 20_000_000).dictionary_encode()
    headers = pa.MapArray.from_arrays(
        [0, len(keys)], keys.cast(pa.string()), pa.nulls(len(keys), pa.binary())
    )
    parquet.write_table(pa.table({"payload": [b"x"], "headers": headers}), file, compression="zstd")
    told, grown = read_in_a_process(file)
    assert "headers" in told
    assert grown < 200


def test_a_line_that_is_too_long_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonlines, "LINE_BYTES_MAX", 100)
    file = tmp_path / "long.jsonl"
    file.write_bytes(b'{"payload": "short"}\n{"payload": "' + b"x" * 100_000 + b'"}\n')
    lines = JsonLines().read(file)
    assert next(lines).payload == b"short"
    with pytest.raises(TaskFailed, match=r"line 2: it has more than 100 bytes"):
        next(lines)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_device_that_never_ends_is_no_file(name: str) -> None:
    with pytest.raises(TaskFailed):
        list(FORMATS[name].read(Path("/dev/zero")))


@pytest.mark.parametrize("manifest", [b"[" * 100_000, b'"' + b"x" * (2 << 20) + b'"'])
def test_a_manifest_is_small_and_flat(manifest: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl.manifest.json"
    file.write_bytes(manifest)
    with pytest.raises(TaskFailed, match=str(file)):
        files.read_json(file)
