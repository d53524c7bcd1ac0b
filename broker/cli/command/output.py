"""Answers as text for people or JSON for machines.

Every line that a command writes goes through here. Topics, properties, names and errors come from others, so
each line is escaped, see ``escapes``. Only payloads that go to a file or a pipe are written byte for byte.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from broker.client import Browsed
from broker.escapes import escaped, escaped_json
from broker.moments import time_text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.text import Text

_WIDTH_OF_A_PIPE: Final = 220
_WIDTH_MAX: Final = 10_000
_EMPTY: Final[tuple[object, ...]] = (None, "", [])
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def write_line(text: str = "", *, err: bool = False) -> None:
    """Write one line on standard output, or on standard error."""
    click.echo(escaped(text), err=err)


def write_lines(text: str, *, err: bool = False) -> None:
    """Write a text whose line ends are meant."""
    for line in text.split("\n"):
        write_line(line, err=err)


@contextmanager
def live_line(*, silent: bool = False, repeats: bool = False) -> Iterator[Callable[[str], object]]:
    """Yield a function that shows a line on standard error: a terminal has one line, which is written over.

    A file or a pipe gets each line, but the same line only once, unless ``repeats``. With ``silent`` it shows nothing.
    """
    if silent:
        yield len
    elif sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - Slow to import, and only terminals need it.
        from rich.live import Live  # noqa: PLC0415

        console, mixed = Console(stderr=True, highlight=False), sys.stdout.isatty()
        with Live(
            console=console, auto_refresh=False, redirect_stdout=mixed, transient=repeats
        ) as live:
            yield lambda text: live.update(cell(text), refresh=True)
    else:
        last = ""

        def write(text: str) -> None:
            nonlocal last
            if repeats or text != last:
                write_line(text, err=True)
            last = text

        yield write


def cell(text: str, style: str = "") -> Text:
    """Return a text of a table or of a screen; rich must not read it as markup."""
    from rich.text import Text  # noqa: PLC0415 - Slow to import, and --json does not need it.

    return Text(escaped(text), style)


def size_text(size: float) -> str:
    """Return a size with a unit, in three or four digits."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def write_coloured_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    colours: Mapping[str, str],
    *,
    wrapped: str = "",
) -> None:
    """Write a table. ``colours`` is by a cell's text; the column ``wrapped`` may take several lines."""
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and --json does not need it.
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=name != wrapped)
    for row in rows:
        table.add_row(*(cell(text, colours.get(text, "")) for text in row))
    console = Console(width=_WIDTH_MAX, highlight=False)
    # A terminal that is too narrow wraps the lines by itself; rich would omit columns.
    columns = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 0)).columns
    console.width = max(columns, console.measure(table).minimum)
    console.print(table)


def write_json(value: object) -> None:
    """Write one value on one line."""
    click.echo(escaped_json(json.dumps(value, ensure_ascii=False)))


def browsed_line(row: Browsed) -> Sequence[str]:
    """Return a browsed message as the columns of a table."""
    text = "" if row.payload is None else row.payload.decode(errors="replace")
    more = "…" if row.truncated or len(text) > 60 else ""
    kind = row.kind if row.tx_state == "none" else f"{row.kind}, {row.tx_state}"
    return row.id.hex(), time_text(row.timestamp_ms), str(row.size), kind, text[:60] + more


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows in columns; each column is as wide as its longest cell."""
    table = [list(map(escaped, row)) for row in (heads, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    for row in table:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        write_line("  ".join(cells).rstrip())


Field = str | Callable[[Any], object]
"""A field of a JSON object by its path (``first.id``), of another object by its attribute, or a function of either."""


def value_of(found: Any, field: Field) -> object:
    """Return the value of a field; None if a JSON object has none."""
    if callable(field):
        return field(found)
    if not isinstance(found, Mapping):
        return getattr(found, field)
    for name in field.split("."):
        found = (found or {}).get(name)
    return found


def _fields(names: Sequence[str], fields: Mapping[str, Field]) -> dict[str, Field]:
    return {name: fields.get(name, name.lower().replace(" ", "_")) for name in names}


def table(
    *heads: str,
    fields: Mapping[str, Field] = MappingProxyType({}),
    none: str = "",
    colours: Mapping[str, str] | None = None,
    wrapped: str = "",
    is_shown_empty: bool = True,
) -> Callable[[Iterable[Any]], None]:
    """Return the layout of objects as a table. A column OLDEST UNREAD shows ``oldest_unread`` unless ``fields`` say else.

    ``none`` is the text of no value; ``colours`` and ``wrapped`` are those of ``write_coloured_table``. Without objects
    the layout writes the heads of the columns, unless ``is_shown_empty`` is false.
    """
    shown = _fields(heads, fields)

    def write(found: Iterable[Any]) -> None:
        values = ([value_of(each, field) for field in shown.values()] for each in found)
        rows = [[none if value is None else str(value) for value in row] for row in values]
        if not (rows or is_shown_empty):
            return
        if colours is None:
            write_table(heads, rows)
        else:
            write_coloured_table(heads, rows, colours, wrapped=wrapped)

    return write


def properties(
    *names: str, fields: Mapping[str, Field] = MappingProxyType({})
) -> Callable[[Any], None]:
    """Return the layout of an object as names and values, by the rule of ``table``. An empty value is left out."""
    shown = _fields(names, fields)

    def write(found: Any) -> None:
        values = {name: value_of(found, field) for name, field in shown.items()}
        write_properties({name: value for name, value in values.items() if value not in _EMPTY})

    return write


def write_spaced(fields: Mapping[str, object]) -> None:
    """Write names and values, with a space for each ``_`` of a name; a field without a value is left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    write_properties({name.replace("_", " "): value for name, value in known.items()})


def write_properties(properties: Mapping[str, object]) -> None:
    """Write names and values, one pair a line."""
    named = [(escaped(name), value) for name, value in properties.items()]
    width = max((len(name) for name, _ in named), default=0)
    for name, value in named:
        write_line(f"{name.ljust(width)}  {value}")


def bar(*columns: ProgressColumn, shown: bool) -> Progress:
    """Return a progress bar on standard error with these columns behind it, invisible unless ``shown``."""
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and --json does not need it.
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=Console(stderr=True),
        transient=True,
        disable=not shown,
    )
