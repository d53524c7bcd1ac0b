"""Draw the plan of a job, as text and as a picture. Pure."""

from __future__ import annotations

from html import escape
from typing import Final

from broker.streams import graph

WIDTH: Final = 230
HEIGHT: Final = 44
GAP: Final = 40
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_COLOURS: Final = {"Source": "#dbeafe", "Sink": "#dcfce7", "state": "#fef3c7", "": "#f4f4f5"}


def text(job: graph.Graph) -> str:
    """Return each end as a tree: the end first, and its sources last."""
    letters = "stop the job" if job.dead_letters is None else f"go to {job.dead_letters}"
    lines = [f"job {job.job_id}: records that fail {letters}"]
    for end in job.ends:
        lines += ["", *_lines(end, "", "")]
    return "\n".join(lines) + "\n"


def _lines(operator: graph.Operator, lead: str, below: str) -> list[str]:
    state = "   [state]" if isinstance(operator, graph.Stateful) else ""
    lines = [f"{lead}{operator.text}{_function(operator)}{state}"]
    for place, parent in enumerate(operator.parents):
        is_last = place == len(operator.parents) - 1
        mark, rest = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        lines += _lines(parent, below + mark, below + rest)
    return lines


def _function(operator: graph.Operator) -> str:
    if not isinstance(operator, graph.Stateless):
        return ""
    function = operator.function
    if isinstance(function, str):
        return f"  {function}"
    return f"  {getattr(function, '__qualname__', type(function).__name__)}()"


def picture(job: graph.Graph) -> str:
    """Return the whole job as SVG, with the sources at the top."""
    operators = job.operators()
    ranks: dict[graph.Operator, int] = {}
    for each in operators:
        ranks[each] = max((ranks[parent] + 1 for parent in each.parents), default=0)
    rows: list[list[graph.Operator]] = [[] for _ in range(max(ranks.values()) + 1)]
    for each in operators:
        rows[ranks[each]].append(each)
    places = {
        each: (GAP + column * (WIDTH + GAP), GAP + row * (HEIGHT + GAP))
        for row, several in enumerate(rows)
        for column, each in enumerate(several)
    }
    width = GAP + max(map(len, rows)) * (WIDTH + GAP)
    height = GAP + len(rows) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {_FONT}>',
        f"<title>{escape(job.job_id)}</title>",
    ]
    for each in operators:
        parts += [_line(places[parent], places[each]) for parent in each.parents]
    parts += [_box(each, *places[each]) for each in operators]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(begin: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = begin, end
    middle = WIDTH // 2
    return f'<path d="M {x1 + middle} {y1 + HEIGHT} L {x2 + middle} {y2}" stroke="#71717a" fill="none"/>'


def _box(operator: graph.Operator, x: int, y: int) -> str:
    kind = "state" if isinstance(operator, graph.Stateful) else type(operator).__name__
    colour = _COLOURS.get(kind, _COLOURS[""])
    return (
        f'<g><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{colour}" stroke="#71717a"/>'
        f'<text x="{x + WIDTH // 2}" y="{y + HEIGHT // 2 + 4}" text-anchor="middle">{escape(operator.text)}</text></g>'
    )
