"""``broker export`` and ``broker import`` against a whole broker, also killed at every step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from broker.cli.messages import transfer as commands
from broker.client import Message, NewMessage, SyncClient
from broker.config.sections import Config, LimitsConfig
from broker.errors import TaskFailed
from broker.transfer import exports, imports
from broker.transfer.avro_file import AvroFile
from broker.transfer.formats import FORMATS, JsonLines
from broker.transfer.message_records import Contents, Progress
from tests.integration.killed_commands import CHUNK, died
from tests.kit.commands import Run, in_this_process
from tests.kit.served import ServedNode

HEADERS = {"trace": b"\xff\x00", "ü": b""}
MESSAGES = [
    NewMessage(b"text", "key"),
    NewMessage(b""),
    NewMessage(b"\xff\x00 no text", b"\xfe", HEADERS),
    NewMessage("日本\n".encode(), None, {"a": b"b"}),
    *(NewMessage(b"%d" % n) for n in range(31)),
]
PAYLOADS = [message.payload for message in MESSAGES]
Seen = list[tuple[bytes, bytes | None, dict[str, bytes]]]


@pytest.fixture
def client(node: ServedNode) -> Iterator[SyncClient]:
    with SyncClient(node.url) as client:
        yield client


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "CHUNK_MESSAGES_MAX", CHUNK)
    monkeypatch.setattr(imports, "CHUNK_MESSAGES_MAX", CHUNK)


def filled(client: SyncClient, topic: str) -> str:
    client.create_topic(topic)
    for message in MESSAGES:
        client.publish(topic, message)
    return topic


def seen(messages: Iterable[Message]) -> Seen:
    return [(message.payload, message.key, dict(message.headers)) for message in messages]


def payloads_of(client: SyncClient, topic: str) -> list[bytes]:
    return [message.payload for message in client.poll(topic)]


def read(file: Path, kind: str) -> list[bytes]:
    return [message.payload for message in FORMATS[kind].read(file)]


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_an_exported_topic_is_imported_unchanged(
    run: Run, client: SyncClient, tmp_path: Path, kind: str
) -> None:
    topic = filled(client, f"out/{kind}")
    file = tmp_path / f"messages.{kind}"
    code, out, _ = run("export", topic, str(file), "--json")
    told = json.loads(out)
    assert (code, told["messages"], told["topic"]) == (0, len(PAYLOADS), topic)
    assert seen(FORMATS[kind].read(file)) == seen(client.poll(topic))
    assert seen(client.poll(topic))[2] == (b"\xff\x00 no text", b"\xfe", HEADERS)
    manifest = json.loads((tmp_path / f"messages.{kind}.manifest.json").read_text())
    assert Contents.of(manifest) == Contents().with_all(client.poll(topic))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        file.name,
        f"{file.name}.manifest.json",
    ]
    client.create_topic(f"in/{kind}")
    code, out, _ = run("import", f"in/{kind}", str(file), "--json")
    told = json.loads(out)
    counts = {name: told[name] for name in ("messages", "published", "verified", "already")}
    assert counts == {**dict.fromkeys(counts, len(PAYLOADS)), "already": 0}
    assert code == 0
    assert told["sha256"] == manifest["sha256"]
    assert seen(client.poll(f"in/{kind}")) == seen(client.poll(topic))
    code, out, said = run("import", f"in/{kind}", str(file))
    assert (code, out, "--again" in said) == (0, "", True)
    assert payloads_of(client, f"in/{kind}") == PAYLOADS
    assert run("import", f"in/{kind}", str(file), "--again")[0] == 0
    assert payloads_of(client, f"in/{kind}") == PAYLOADS * 2


def test_a_range_is_exported_by_ids_and_by_times(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    topic = filled(client, "out/range")
    ids = [message.id for message in client.poll(topic)]
    file = tmp_path / "some.jsonl"
    assert (
        run("export", topic, str(file), "--since", ids[3].hex(), "--until", ids[30].hex())[0] == 0
    )
    assert read(file, "jsonl") == PAYLOADS[3:30]
    assert run("export", topic, str(file), "--since", "1h", "--force")[0] == 0
    assert read(file, "jsonl") == PAYLOADS
    assert run("export", topic, str(file), "--until", "1h", "--force")[0] == 0
    assert read(file, "jsonl") == []


def test_messages_published_meanwhile_are_not_exported(
    run: Run, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, file, kind = filled(client, "out/late"), tmp_path / "late.jsonl", FORMATS["jsonl"]
    real = kind.append

    def append(*arguments: object) -> int:
        client.publish(topic, b"late")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "append", append)
    assert run("export", topic, str(file))[0] == 0
    assert read(file, "jsonl") == PAYLOADS


def test_the_messages_of_a_transaction_are_exported_together(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    client.create_topic("out/stored")
    with client.stage("out/stored") as stage:
        stage.store(PAYLOADS)
    client.publish_stages("out/stored", [stage.id])
    file = tmp_path / "stored.avro"
    assert run("export", "out/stored", str(file))[0] == 0
    assert read(file, "avro") == PAYLOADS
    ids = [message.id.hex() for message in client.poll("out/stored")]
    words = ["--since", ids[3], "--until", ids[30], "--force"]
    assert run("export", "out/stored", str(file), *words)[0] == 0
    assert read(file, "avro") == PAYLOADS[3:30], "all of them have the row of one reference"


@pytest.mark.parametrize("kind", [JsonLines(), AvroFile()])
def test_an_export_does_not_continue_a_damaged_part(
    kind: JsonLines | AvroFile, tmp_path: Path
) -> None:
    part, file = tmp_path / "a.part", tmp_path / "a"
    size = kind.append(part, 0, [Message(bytes(20), b"a")])
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    for step in (lambda: kind.append(part, size, []), lambda: kind.finish(part, size, file)):
        with pytest.raises(TaskFailed, match="was changed or removed"):
            step()
    part.write_bytes(whole + b"what a stopped export wrote")
    kind.finish(part, size, file)
    assert file.read_bytes() == whole
    with pytest.raises(TaskFailed, match="was changed or removed"):
        kind.append(part, size, [])


def test_no_message_is_imported_from_a_file_with_an_invalid_message(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    client.create_topic("in/refused")
    file = tmp_path / "refused.jsonl"
    lines = ['{"payload": "fine"}'] * 1_100 + ['{"payload": "a", "headers": {"": "b"}}']
    file.write_text("\n".join(lines))
    code, _, told = run("import", "in/refused", str(file))
    assert (code, "message 1,101" in told) == (1, True)
    assert client.poll("in/refused") == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["there.jsonl"], 2, "--force"),
        (["a.txt"], 2, "--format"),
        (["a.jsonl", "--since", "soon"], 2, "'soon'"),
    ],
)
def test_an_export_with_invalid_options_is_refused(
    run: Run, client: SyncClient, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    client.create_topic("out/refused", if_exists="keep")
    (tmp_path / "there.jsonl").write_text("mine")
    found, _, told = run("export", "out/refused", str(tmp_path / words[0]), *words[1:])
    assert (found, says in told) == (code, True), told
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_a_repeated_import_of_messages_that_are_gone_says_so(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"value": "{n}"}}\n' for n in range(25)))
    client.create_topic("in/gone")
    assert run("import", "in/gone", str(file))[0] == 0
    client.purge("in/gone", "now")
    code, _, said = run("import", "in/gone", str(file), "--json")
    assert (code, "--again" in said, json.loads(said)["outcome"]) == (3, True, "unknown"), said
    assert client.poll("in/gone") == []
    code, out, _ = run("import", "in/gone", str(file), "--again", "--json")
    assert (code, json.loads(out)["verified"]) == (0, 25)
    assert payloads_of(client, "in/gone") == [b"%d" % n for n in range(25)]


def test_an_import_compares_the_messages_that_it_reads_back(
    run: Run, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"value": "a"}\n')
    client.create_topic("in/other")
    monkeypatch.setattr(imports, "new_of", lambda _: b"another")
    code, _, said = run("import", "in/other", str(file))
    assert (code, "could not all be read back" in said) == (3, True), said


def test_an_import_reads_a_chunk_back_in_several_polls_if_the_broker_answers_few_messages(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"value": "{n}"}}\n' for n in range(25)))
    run = in_this_process(capfd, monkeypatch)
    with ServedNode(Config(limits=LimitsConfig(poll_messages_max=3))) as node:
        monkeypatch.setenv("BROKER_URL", node.url)
        assert run("topics", "create", "in/few")[0] == 0
        code, out, said = run("import", "in/few", str(file), "--json")
    assert code == 0, said
    assert json.loads(out)["verified"] == 25


def test_an_import_publishes_no_message_of_an_incomplete_file(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    topic = filled(client, "out/damaged")
    file = tmp_path / "a.jsonl"
    run("export", topic, str(file))
    client.create_topic("in/damaged")
    lines = file.read_bytes().splitlines(keepends=True)
    for damaged in (lines[:-1], [*lines, lines[0]], [lines[1], lines[0], *lines[2:]]):
        file.write_bytes(b"".join(damaged))
        code, _, said = run("import", "in/damaged", str(file))
        assert (code, "nothing was published" in said) == (1, True), said
    file.write_bytes(b"".join(lines)[:-9])
    code, _, said = run("import", "in/damaged", str(file))
    assert (code, f"line {len(lines)}" in said) == (1, True), said
    assert client.poll("in/damaged") == []


@pytest.mark.parametrize("kept", [5, 20, 22, 30])
def test_an_import_publishes_only_what_it_has_checked(
    run: Run, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    file, topic = tmp_path / "a.jsonl", f"in/changed{kept}"
    lines = [f'{{"value": "{n}"}}\n' for n in range(30)]
    file.write_text("".join(lines[:25]))
    client.create_topic(topic)
    real = commands.checked

    def checked(given: imports.ImportPlan, progress: Progress) -> list[Contents]:
        found = real(given, progress)
        file.write_text("".join(lines[:kept]))
        return found

    with monkeypatch.context() as changing:
        changing.setattr(commands, "checked", checked)
        code, _, said = run("import", topic, str(file))
    assert (code, "has changed since it was checked" in said) == (1 if kept < CHUNK else 3, True)
    assert payloads_of(client, topic) == [b"%d" % n for n in range(min(kept, 20) // CHUNK * CHUNK)]
    file.write_text("".join(lines[:25]))
    assert run("import", topic, str(file))[0] == 0
    assert payloads_of(client, topic) == [b"%d" % n for n in range(25)]


def test_an_import_refuses_a_file_that_can_be_read_only_once(run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "a.jsonl"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # So that a reader does not wait for a writer.
    os.write(writer, b'{"value": "a", "no": 1}\n')
    code, _, said = run("import", "in/pipe", str(pipe))
    os.close(writer)
    assert (code, "is not a regular file" in said) == (2, True), said


# Killed.


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_an_export_that_is_killed_at_any_step_goes_on(
    node: ServedNode, client: SyncClient, tmp_path: Path, kind: str
) -> None:
    topic = filled(client, f"killed/{kind}")
    steps = 0
    file = tmp_path / f"0.{kind}"
    while died(node.url, steps + 1, "export", topic, str(file)):
        steps += 3 if kind == "jsonl" else 7
        assert not file.exists() or read(file, kind) == PAYLOADS
        assert not died(node.url, 0, "export", topic, str(file))
        assert read(file, kind) == PAYLOADS
        manifest = json.loads(file.with_name(f"{file.name}.manifest.json").read_text())
        assert manifest["messages"] == len(PAYLOADS)
        assert Contents.of(manifest) == Contents().with_all(client.poll(topic))
        assert {path.name for path in tmp_path.glob(f"{file.name}*")} == {
            file.name,
            f"{file.name}.manifest.json",
        }
        file = tmp_path / f"{steps}.{kind}"
    assert steps > 15, "it has fewer steps than expected"


def test_an_export_that_is_killed_again_and_again_is_completed(
    node: ServedNode, client: SyncClient, tmp_path: Path
) -> None:
    topic, file, lives = filled(client, "killed/often"), tmp_path / "a.avro", 1
    while died(node.url, 13, "export", topic, str(file)):
        lives += 1
        assert lives < 50
    assert lives > 2
    assert read(file, "avro") == PAYLOADS


def test_an_import_that_is_killed_at_any_step_publishes_each_message_once(
    node: ServedNode, client: SyncClient, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"payload": "{n}"}}\n' for n in range(25)))
    expected = [b"%d" % n for n in range(25)]
    step, topic = 1, "killed/import1"
    client.create_topic(topic)
    while died(node.url, step, "import", topic, str(file)):
        assert not died(node.url, 0, "import", topic, str(file))
        assert payloads_of(client, topic) == expected
        step += 2
        topic = f"killed/import{step}"
        client.create_topic(topic)
    assert step > 10, "it has fewer steps than expected"
    assert payloads_of(client, topic) == expected
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_an_export_continues_only_with_its_topic_and_options(
    run: Run, node: ServedNode, client: SyncClient, tmp_path: Path
) -> None:
    topic, file = filled(client, "killed/other"), tmp_path / "a.jsonl"
    assert died(node.url, 6, "export", topic, str(file))
    other = filled(client, "killed/another")
    code, _, said = run("export", other, str(file))
    assert (code, "killed/other" in said) == (1, True), said
    code, _, said = run("export", topic, str(file), "--since", "1h")
    assert (code, "since" in said) == (1, True), said
    code, _, said = run("export", topic, str(file))
    assert (code, "continuing" in said) == (0, True), said
    assert read(file, "jsonl") == PAYLOADS


def test_an_import_continues_only_with_its_file_and_topic(
    run: Run, node: ServedNode, client: SyncClient, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"payload": "{n}"}}\n' for n in range(25)))
    client.create_topic("killed/changed")
    assert died(node.url, 5, "import", "killed/changed", str(file))
    file.write_text('{"payload": "other"}\n')
    code, _, said = run("import", "killed/changed", str(file))
    assert (code, "another file" in said) == (1, True), said
