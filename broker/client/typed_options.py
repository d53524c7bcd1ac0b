"""Options with types: a dataclass declares them, and these functions check what a caller gives.

A type checker sees a wrong name or type in a call. A program that no type checker has read must see it, too: when the
options are given, not when they are used. ``deadline_s="10"`` would otherwise fail within a request.
"""

from __future__ import annotations

import difflib
import reprlib
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_UNIONS: Final = (Union, types.UnionType)


def changed(options: T, given: Mapping[str, Any]) -> T:
    """Return a copy of ``options``, a dataclass, with the given ones.

    Raises:
        TypeError: there is no such option; the nearest name is told.
    """
    check_names(tuple(_types_of(type(options))), given)
    return replace(options, **given)  # type: ignore[type-var]


def check_names(known: Iterable[str], given: Iterable[str]) -> None:
    """Raise TypeError if a given name is not among the known ones; name the nearest one."""
    names = tuple(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            advice = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}."
            raise TypeError(f"There is no option {name}. {advice}")


def check_types(options: object) -> None:
    """Raise TypeError if a field of ``options``, a dataclass, has a value of another type than it declares.

    A float may be an int, and neither may be a bool.
    """
    for name, wanted in _types_of(type(options)).items():
        value = getattr(options, name)
        if not _fits(value, wanted):
            told = reprlib.repr(value)
            raise TypeError(f"{name} is {_name_of(wanted)}, not {told} ({type(value).__name__}).")


def _types_of(kind: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: object, wanted: Any) -> bool:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in _UNIONS:
        return any(_fits(value, each) for each in arguments)
    if origin is tuple and isinstance(value, tuple):
        wants = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
        return len(value) == len(wants) and all(map(_fits, value, wants))
    if wanted in (int, float):
        return isinstance(value, wanted | int) and not isinstance(value, bool)
    kind = str if origin is Literal else origin or wanted  # The class checks which words there are.
    return isinstance(value, kind) if isinstance(kind, type) else True


def _name_of(wanted: Any) -> str:
    if wanted in (int, float):
        return "a number" if wanted is float else "a whole number"
    if get_origin(wanted) in _UNIONS:
        return " or ".join(_name_of(each) for each in get_args(wanted))
    if wanted is type(None):
        return "None"
    return wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted)
