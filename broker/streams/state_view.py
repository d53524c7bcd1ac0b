"""The state of a job, for people: what its operators keep for each key, as JSON can hold it. Pure.

What a chain keeps is pickled, and its keys name classes. To look must not run anything, and must not need the job's
modules. So objects come back as **parts**: the name of their class, and what they hold. Values are shown so::

    numbers, text, None      as they are          bytes     text, or {"base64": …} if they are none
    lists, tuples, sets      lists                dicts     objects, whose names are text
    times                    RFC 3339             objects   {"class": name, and its fields}; an accumulator: its fields

Spark's own aggregates and joins keep columns, which are shown by their names.
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
"""Classes that are taken as they are: values alone, which do nothing when they are made."""


class StateEntry(NamedTuple):
    """The state of an operator for a key, or for one of its windows; all parts are as JSON has them."""

    operator: str
    key: Any
    window: Mapping[str, str] | None
    kept: Any

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return self._asdict()


class ObjectParts:
    """An object whose class was not asked for."""

    name = ""
    parts: list[Any]
    fields: dict[str, Any]

    def __new__(cls, *parts: Any, **fields: Any) -> Self:
        """Take what it is made of. Pickle doesn't call ``__init__`` of every object."""
        one = super().__new__(cls)
        one.parts, one.fields = [*parts], {**fields}
        return one

    def __setstate__(self, state: Any) -> None:
        """Take the fields: of the object, and of its slots."""
        for given in state if isinstance(state, tuple) else (state,):
            if isinstance(given, dict):
                self.fields.update({str(name): value for name, value in given.items()})
            elif given is not None:
                self.parts.append(given)

    def __setitem__(self, name: Any, value: Any) -> None:
        """Take an item of what is a dict, too."""
        self.fields[str(name)] = value

    def append(self, part: Any) -> None:
        """Take an item of what is a list, too."""
        self.parts.append(part)


class _Unpickler(pickle.Unpickler):
    """Makes no objects but of plain classes."""

    @override
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return a plain class, or one of parts."""
        if global_name in _PLAIN.get(module_name, ()):
            return super().find_class(module_name, global_name)
        return type("Parts", (ObjectParts,), {"name": global_name})


def unpickled(data: bytes) -> Any:
    """Return a value whose objects are parts. Raises ValueError if it is none that was pickled."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(f"the state can't be read: {type(error).__name__}: {error}") from error


def shown(value: Any, depth: int = 0) -> Any:  # noqa: C901, PLR0911 - A table.
    """Return a value as JSON can hold it."""
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
    """Return a window's times, RFC 3339 in UTC."""
    return {"start": _time(window.start_ms), "end": _time(window.end_ms)}


def _time(time_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # No calendar reaches it.
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text_of(found: Any) -> str:
    """Return what ``shown`` gave as text: text as it is, all else as JSON."""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def key_shown(key: bytes) -> Any:
    """Return a key of a chain as JSON can hold it. Raises ValueError."""
    return shown(decode_key(key, _parts_of))


def _parts_of(kind: str, parts: Sequence[Any]) -> ObjectParts:
    made: ObjectParts = type("Parts", (ObjectParts,), {"name": kind.rpartition(":")[2]})(*parts)
    return made


# --- A chain's cells -------------------------------------------------------------------------------


def of_cells(key: bytes, cells: bytes) -> Iterator[StateEntry]:
    """Yield what the operators of a chain keep for a key, by window. Raises ValueError."""
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
    """Return what an aggregate or a join of Spark's keeps in a row; ``side``: of a join, left or right."""
    if side is not None:
        bounds, key_text = value.get(f"_{side}_bounds"), value.get(f"_{side}_key")
        own = {f"_{side}_{name}" for name in ("bounds", "key", "at")}
        rest = {name: each for name, each in value.items() if name not in own}
        # Spark keeps the fields alone that are asked for, if they are few.
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
    """Return the times of a window of Spark's, whose session is in UTC."""
    if bounds is None:
        return None
    times = (bounds[name] for name in ("start", "end"))
    moments = (time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)
    return window_shown(Window(*(round(moment.timestamp() * 1000) for moment in moments)))


def is_wanted(entry: StateEntry, operator: str | None, key: str | None) -> bool:
    """Whether an entry is of an operator, and of a key as text; None: of any."""
    return (operator is None or entry.operator == operator) and (
        key is None or text_of(entry.key) == key
    )


class StateLocation(NamedTuple):
    """Where Spark keeps what an operator of the plan has."""

    number: int
    kind: str
    """As Spark names its operators."""

    @property
    def is_chain(self) -> bool:
        """Whether it holds a chain's cells."""
        return self.kind.startswith("transformWithState")

    @property
    def sides(self) -> Sequence[str | None]:
        """The sides that it has a store for each."""
        return ("left", "right") if self.kind == "symmetricHashJoin" else (None,)


_WINDOWS: Final = {
    "stateStoreSave": (" by tumbling", " by sliding"),
    "sessionWindowStateStoreSaveExec": (" by sessions",),
    "symmetricHashJoin": (" join",),
}


def name_of(place: StateLocation, stores: Sequence[Store]) -> str:
    """Return the name of the operator whose columns Spark keeps at a place, Spark's own if several may be meant."""
    marks = _WINDOWS.get(place.kind, ())
    found = [
        name
        for store in stores
        if store["run"] == BY_SPARK
        for name, kind in store["operators"].items()
        if any(mark in kind for mark in marks)
    ]
    return found[0] if len(found) == 1 else f"{place.kind}-{place.number}"
