"""Pages mention only existing commands, options, methods of the client, files and tests."""

import ast
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from broker.cli.app import cli
from broker.client import Client, SyncClient
from chaos.cli import cli as verifier
from tests.tidy.sources import ROOT, text, tracked

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *tracked("docs/*.md")]
PAGES = [page for page in PAGES if not page.startswith("docs/results/")]
SPAN = re.compile(r"`((?:\.venv/bin/)?broker [^`]+)`")
PRINTED = ("broker ready at ",)
"""Lines that begin like a command, and are output."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_FENCE = re.compile(r"(?:^|[|$] ?)((?:\.venv/bin/)?broker [^|#]*?)(?= {3}|#|\||$)", re.MULTILINE)
FILE = re.compile(r"`((?:broker|chaos|tests|scripts|examples|benchmarks|docker)/[\w/.-]+)`")
MADE_BY_RUNS = ("chaos/store/",)
TEST = re.compile(r"`(test_\w+)`")
DEFINED = re.compile(r"def (test_\w+)\(")
METHOD = re.compile(r"(?<![\w./])[cC]lient\.([a-z_]+)(?!\w*\.)\b")


def mentioned(page: str) -> Iterator[str]:
    """Yield the commands in the blocks and in the sentences of a page."""
    whole = text(page)
    for language, block in FENCE.findall(whole):
        if language not in ("", "console", "sh"):
            continue
        yield from IN_FENCE.findall(block.replace("\\\n", " "))
    yield from SPAN.findall(re.sub(r"\n\s*", " ", FENCE.sub("", whole)))


def unknown(line: str) -> list[str]:
    """Return the words of a line that are neither commands nor options of the command line."""
    if line.startswith(PRINTED):
        return []
    words = shlex.split(line.replace("…", ""))[1:]
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name == "COMMAND":
            return []
        choices = name.split("|")  # As in "broker cluster drain|undrain".
        found = [command.get_command(click.Context(command), choice) for choice in choices]
        if None in found:
            return [name]
        command = verifier if name == "chaos" else found[0] or cli
    known = {"--help", "-h"} | {
        name for option in command.params for name in (*option.opts, *option.secondary_opts)
    }
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return [option for option in given if option not in known]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_mentions_only_existing_commands_and_options(page: str) -> None:
    assert [(line, found) for line in mentioned(page) if (found := unknown(line))] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_mentions_only_existing_methods_of_the_client(page: str) -> None:
    names = set(METHOD.findall(text(page))) - {"md"}
    assert {n for n in names if not hasattr(Client, n) and not hasattr(SyncClient, n)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_mentions_only_existing_files(page: str) -> None:
    names = [name for name in FILE.findall(text(page)) if not name.startswith(MADE_BY_RUNS)]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_pages_mention_only_existing_tests() -> None:
    known = {found for name in tracked("tests/*.py") for found in DEFINED.findall(text(name))}
    assert {name for page in PAGES for name in TEST.findall(text(page))} - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_program_of_a_page_compiles(page: str) -> None:
    for language, program in FENCE.findall(text(page)):
        if language in ("py", "python"):
            compile(program, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_unknown_commands_and_options_are_found() -> None:
    assert unknown("broker publish a/b --lines - --keyy x") == ["--keyy"]
    assert unknown("broker pubish a/b") == ["pubish"]
    assert unknown("broker topics creat a/b") == ["creat"]
    assert unknown("broker chaos run --nemesi pause") == ["--nemesi"]
    assert unknown("broker serve --port 9000") == []
    assert METHOD.findall("`client.pubish(x)`, Client.tail_pages") == ["pubish", "tail_pages"]
    assert len(list(mentioned("docs/guides/command-line.md"))) > 20
