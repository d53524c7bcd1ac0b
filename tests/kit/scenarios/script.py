"""Parse and write a scenario's text: commands, a line of four dashes, and the printed lines.

::

    # Comments tell the story.

    kill 0                      commands, one in each line
    publish orders c via=1
    ----
    ok                          the printed lines, up to an empty line

The format is that of Go's datadriven tests, as etcd's raft uses them, but a block may have several commands.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

DASHES: Final = "----"
WIDTH: Final = 60
"""The width of the expected lines in a comparison."""


class Block(NamedTuple):
    """Commands and their printed lines. ``comments`` are the lines before; ``line`` is the number of its first line."""

    line: int
    comments: Sequence[str]
    commands: Sequence[str]
    expected: Sequence[str]

    @property
    def text(self) -> list[str]:
        """The lines of the block in the file, without the empty line at its end."""
        return [*self.comments, *self.commands, DASHES, *self.expected]


def parse(text: str) -> list[Block]:
    """Read a scenario. Raises ValueError: a block has no commands or no dashes."""
    blocks: list[Block] = []
    comments: list[str] = []
    commands: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line == DASHES:
            if not commands:
                raise ValueError(f"line {number}: there are no commands above {DASHES}")
            expected = _until_empty(each for _, each in lines)
            blocks.append(Block(number - len(commands), comments, commands, expected))
            comments, commands = [], []
        elif line and not line.startswith("#"):
            commands.append(line)
        elif commands:
            raise ValueError(f"line {number}: {DASHES} must follow the commands")
        else:
            comments.append(line)
    if commands:
        raise ValueError(f"{DASHES} must follow the last commands")
    return blocks


def _until_empty(lines: Iterable[str]) -> list[str]:
    found = []
    for line in lines:
        if not line:
            break
        found.append(line)
    return found


def written(blocks: Sequence[Block]) -> str:
    """Return the text of a scenario."""
    return "\n\n".join("\n".join(block.text) for block in blocks) + "\n"


def compared(expected: Sequence[str], actual: Sequence[str]) -> str:
    """Return the expected and the printed lines side by side; a mark shows each difference."""
    rows = [f"{'expected':{WIDTH}}   actual"]
    matcher = difflib.SequenceMatcher(a=expected, b=actual, autojunk=False)
    for _, first, last, start, stop in matcher.get_opcodes():
        left, right = expected[first:last], actual[start:stop]
        for place in range(max(len(left), len(right))):
            one = left[place] if place < len(left) else ""
            two = right[place] if place < len(right) else ""
            rows.append(f"{one:{WIDTH}} {' ' if one == two else '|'} {two}".rstrip())
    return "\n".join(rows)
