"""Show the state of a job to people: the state of each operator and key, in values that JSON can hold. Pure.

A chain pickles its state, and its keys name classes. Inspection must not run the job's code, and must not need its
modules. So objects come back as **parts**: the name of their class, and their fields. This module shows values so::

    numbers, text, None      as they are          bytes     text, or {"base64": …} if they are none
    lists, tuples, sets      lists                dicts     objects, whose names are text
    times                    RFC 3339             objects   {"class": name, and its fields}; an accumulator: its fields

Spark's own aggregates and joins keep columns. This module shows those by their names.
"""

from __future__ import annotations

import base64
import io
import json
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple, Self

from typing_extensions import override

from broker.streams.changes import BY_SPARK, Store
from broker.streams.join_operators import LEFT, RIGHT
from broker.streams.key_codec import decode_key
from broker.streams.windows import Window

_SIDES: Final = {LEFT: "left", RIGHT: "right"}
_DEPTH_MAX: Final = 20
_PLAIN: Final = {
    "builtins": {"bytearray", "complex", "frozenset", "set"},
    "collections": {"OrderedDict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID"},
    Window.__module__: {Window.__name__},
}
"""Classes whose objects are unpickled as they are: plain values, whose constructors have no effects."""


class StateEntry(NamedTuple):
    """The state of an operator for a key, or for one window of a key; JSON can hold all parts."""

    operator: str
    key: Any
    window: Mapping[str, str] | None
    kept: Any

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dict for JSON."""
        return self._asdict()


class ObjectParts:
    """Stands for an object whose class was not imported."""

    name = ""
    parts: list[Any]
    fields: dict[str, Any]

    def __new__(cls, *parts: Any, **fields: Any) -> Self:
        """Take the arguments of the object. Pickle doesn't call ``__init__`` of every object."""
        one = super().__new__(cls)
        one.parts, one.fields = [*parts], {**fields}
        return one

    def __setstate__(self, state: Any) -> None:
        """Take the fields of the object and of its slots."""
        for given in state if isinstance(state, tuple) else (state,):
            if isinstance(given, dict):
                self.fields.update({str(name): value for name, value in given.items()})
            elif given is not None:
                self.parts.append(given)

    def __setitem__(self, name: Any, value: Any) -> None:
        """Take an item, of an object whose class extends dict."""
        self.fields[str(name)] = value

    def append(self, part: Any) -> None:
        """Take an item, of an object whose class extends list."""
        self.parts.append(part)


class _Unpickler(pickle.Unpickler):
    """Makes objects of plain classes alone, and ObjectParts for all others."""

    @override
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return a plain class, or a class of ObjectParts with the name."""
        if global_name in _PLAIN.get(module_name, ()):
            return super().find_class(module_name, global_name)
        return type("Parts", (ObjectParts,), {"name": global_name})


def unpickled(data: bytes) -> Any:
    """Return a pickled value, with parts for its objects. Raises ValueError if the bytes are no pickle."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(f"the state can't be read: {type(error).__name__}: {error}") from error


def shown(value: Any, depth: int = 0) -> Any:  # noqa: C901, PLR0911 - A table.
    """Return a value in a form that JSON can hold."""
    if depth > _DEPTH_MAX:
        return "…"
    match value:
        case float() if not math.isfinite(value):  # JSON has no such number.
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return _text(bytes(value))
        case datetime() | date():
            return value.isoformat()
        case Window():
            return window_shown(value)
        case ObjectParts():
            fields = _fields(value, depth)
            return {"class": value.name, **fields} if isinstance(fields, dict) else fields
        case Mapping():
            return {text_of(shown(name)): shown(each, depth + 1) for name, each in value.items()}
        case set() | frozenset():
            return sorted((shown(each, depth + 1) for each in value), key=text_of)
        case Sequence():
            return [shown(each, depth + 1) for each in value]
        case _:
            return str(value)


def _fields(value: ObjectParts, depth: int) -> Any:
    fields = {name.lstrip("_"): shown(each, depth + 1) for name, each in value.fields.items()}
    parts = [shown(each, depth + 1) for each in value.parts]
    return {**fields, **({"parts": parts} if parts else {})}


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def window_shown(window: Window) -> dict[str, str]:
    """Return a window's start and end, RFC 3339 in UTC."""
    return {"start": _time(window.start_ms), "end": _time(window.end_ms)}


def _time(time_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # datetime can't hold this time.
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text_of(found: Any) -> str:
    """Return the text of a value from ``shown``: text as it is, all others as JSON."""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def key_shown(key: bytes) -> Any:
    """Return a key of a chain in a form that JSON can hold. Raises ValueError."""
    return shown(decode_key(key, _parts_of))


def _parts_of(kind: str, parts: Sequence[Any]) -> ObjectParts:
    made: ObjectParts = type("Parts", (ObjectParts,), {"name": kind.rpartition(":")[2]})(*parts)
    return made


# --- A chain's cells -------------------------------------------------------------------------------


def of_cells(key: bytes, cells: bytes) -> Iterator[StateEntry]:
    """Yield the state of a chain's operators for a key, by window. Raises ValueError."""
    key_text = key_shown(key)
    for operator, cell in unpickled(cells).items():
        windows = sorted(name for name in cell if isinstance(name, Window))
        for window in windows:
            yield StateEntry(operator, key_text, window_shown(window), _kept(cell[window]))
        rest = {name: value for name, value in cell.items() if not isinstance(name, Window)}
        if rest:
            yield StateEntry(operator, key_text, None, _kept_without_window(rest))


def _kept(value: Any) -> Any:
    """Return an accumulator's fields, or the sides of a join by name."""
    if isinstance(value, ObjectParts):
        return _fields(value, 0)
    if isinstance(value, dict) and value.keys() <= _SIDES.keys():
        return {_SIDES[side]: shown(value[side]) for side in sorted(value)}
    return shown(value)


def _kept_without_window(cell: dict[Any, Any]) -> Any:
    if cell.keys() == {"sum"}:
        return _kept(cell["sum"])
    if cell.keys() <= {"value", "due"}:  # Of a processor.
        due_ms = cell.get("due")
        due = {} if due_ms is None else {"due": _time(due_ms)}
        return {"value": shown(cell.get("value")), **due}
    return _kept(cell)


# --- Spark's columns -------------------------------------------------------------------------------

Columns = Mapping[str, Any]


def of_columns(operator: str, side: str | None, key: Columns, value: Columns) -> StateEntry:
    """Return the state in a row of Spark's own aggregate or join; ``side``: left or right, for a join."""
    if side is not None:
        bounds, key_text = value.get(f"_{side}_bounds"), value.get(f"_{side}_key")
        own = {f"_{side}_{name}" for name in ("bounds", "key", "at")}
        rest = {name: each for name, each in value.items() if name not in own}
        # Spark may keep only the fields that the query reads.
        kept = rest[side] if rest.keys() == {side} else rest
        return StateEntry(operator, shown(key_text), _bounds(bounds), {side: shown(kept)})
    bounds = key.get("window") or value.get("session_window")
    kept = {
        name: shown(each)
        for name, each in value.items()
        if name not in {"session_window", "window", "_key"}
    }
    return StateEntry(operator, shown(key.get("_key")), _bounds(bounds), kept)


def _bounds(bounds: Mapping[str, datetime] | None) -> dict[str, str] | None:
    """Return the times of Spark's window. Its session uses UTC."""
    if bounds is None:
        return None
    times = (bounds[name] for name in ("start", "end"))
    moments = (time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)
    return window_shown(Window(*(round(moment.timestamp() * 1000) for moment in moments)))


def is_wanted(entry: StateEntry, operator: str | None, key: str | None) -> bool:
    """Return whether an entry is of an operator, and of a key as text; None stands for any."""
    return (operator is None or entry.operator == operator) and (
        key is None or text_of(entry.key) == key
    )


class StateLocation(NamedTuple):
    """The place in which Spark keeps the state of an operator of its plan."""

    number: int
    kind: str
    """Spark's name for the kind of operator."""

    @property
    def is_chain(self) -> bool:
        """Return whether it holds the cells of a chain."""
        return self.kind.startswith("transformWithState")

    @property
    def sides(self) -> Sequence[str | None]:
        """The sides of a join, which has one store for each; else one None."""
        return ("left", "right") if self.kind == "symmetricHashJoin" else (None,)


_WINDOWS: Final = {
    "stateStoreSave": (" by tumbling", " by sliding"),
    "sessionWindowStateStoreSaveExec": (" by sessions",),
    "symmetricHashJoin": (" join",),
}


def name_of(place: StateLocation, stores: Sequence[Store]) -> str:
    """Return the name of the operator whose columns Spark keeps at a place.

    If several operators are possible, return Spark's own name.
    """
    marks = _WINDOWS.get(place.kind, ())
    found = [
        name
        for store in stores
        if store["run"] == BY_SPARK
        for name, kind in store["operators"].items()
        if any(mark in kind for mark in marks)
    ]
    return found[0] if len(found) == 1 else f"{place.kind}-{place.number}"
