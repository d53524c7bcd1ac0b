"""Shapes of JSON values: Python types that declare what a body or a reply has.

A shape is made of the types that every type checker knows: ``str``, ``int``, ``list[…]``, ``dict[str, …]``, ``X | None``,
``Literal``, and a ``TypedDict`` for an object whose fields are known. ``Annotated[str, Rule(pattern=…)]`` adds bounds, and
``ShapeName`` gives a shape other than a ``TypedDict`` a name in the OpenAPI document::

    class CursorSent(TypedDict):
        after: MessageIdText | None
        data: NotRequired[Annotated[str, Rule(maxLength=1024)]]

From a shape come the types with which mypy checks the handlers, the schema in the document (``schema_of``), the check of what a
client sends (``problem``), and the check of what a server answers (``fits``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import is_typeddict

Schema = dict[str, Any]
"""A JSON schema. In ``maximum``, a name stands for the value of that key of the section ``limits``."""
Shape = Any
"""A type that declares a JSON value."""
STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}

_PLAIN: Final[Mapping[Shape, Schema]] = {
    str: STRING,
    int: INTEGER,
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "format": "binary"},
    NoneType: {"type": "null"},
    object: {},
}
_SAID: Final[Mapping[Shape, str]] = {
    str: "valid Unicode text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}


class Rule:
    """Bounds of a value, by the keywords of JSON Schema. ``says`` is what an error calls such a value.

    ``problem`` checks words and sizes. The reader of a text or a number checks its pattern or its bounds: its error tells more.
    """

    def __init__(self, *, says: str = "", **keywords: Any) -> None:
        self.says = says
        self.keywords = keywords


class ShapeName:
    """The name of a shape in the OpenAPI document."""

    def __init__(self, name: str) -> None:
        self.name = name


def _made_of(shape: Shape) -> tuple[Any, tuple[Any, ...]]:
    """Return the generic type of which a shape is made, and its arguments. ``X | Y`` is a Union, too."""
    origin: Any = get_origin(shape)
    return Union if origin is UnionType else origin, get_args(shape)


def name_of(shape: Shape) -> str | None:
    """Return the name of a shape that the document lists by name: of a TypedDict, or one given with ``ShapeName``."""
    if is_typeddict(shape):
        return str(shape.__name__)
    given = [
        each.name for each in getattr(shape, "__metadata__", ()) if isinstance(each, ShapeName)
    ]
    return given[0] if given else None


@cache
def fields_of(shape: Shape) -> Mapping[str, tuple[Shape, bool]]:
    """Return the fields of a TypedDict: the shape of each, and whether it is required."""
    hints = get_type_hints(shape, include_extras=True)
    return {
        name: (get_args(kind)[0], False) if get_origin(kind) is NotRequired else (kind, True)
        for name, kind in hints.items()
    }


def forms_of(shape: Shape) -> tuple[Shape, ...]:
    """Return the shapes of which a body has one: more than one only for a union."""
    origin, args = _made_of(shape)
    if origin is Annotated:
        return forms_of(args[0])
    return args if origin is Union else (shape,)


def schema_of(shape: Shape) -> Schema:
    """Return the JSON schema of a shape."""
    origin, args = _made_of(shape)
    made: Schema
    if origin is Annotated:
        made = schema_of(args[0])
        for rule in [each for each in args[1:] if isinstance(each, Rule)]:
            # The words of a list have their types; the document tells each thing once.
            made = {**({} if "enum" in rule.keywords else made), **rule.keywords}
    elif origin is Union:
        made = {"anyOf": [schema_of(each) for each in args]}
    elif origin is Literal:
        made = {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    elif origin is list:
        made = {"type": "array", "items": schema_of(args[0])}
    elif origin is dict:
        made = {"type": "object", "additionalProperties": schema_of(args[1])}
    elif is_typeddict(shape):
        fields = fields_of(shape)
        made = {
            "type": "object",
            "properties": {name: schema_of(kind) for name, (kind, _) in fields.items()},
            "required": [name for name, (_, required) in fields.items() if required],
            "additionalProperties": False,
        }
    else:
        made = dict(_PLAIN[shape])
    return made


def fits(value: object, shape: Shape, *, strict: bool = False) -> bool:
    """Return whether a JSON value has a shape.

    A client asks so about an answer: an object may have more fields, a later server may know more words, and the items of
    lists count. A server asks with ``strict`` about a field that it was sent: words and sizes count, too. It does not look
    into lists and objects, since they may be large: their reader does, some items at a time.
    """
    return _check_of(shape, strict)(value)


Check = Callable[[Any], bool]


@cache
def _check_of(shape: Shape, strict: bool) -> Check:
    """Return the check of a shape. It is made once: an answer may have ten thousand objects of one shape."""
    origin, args = _made_of(shape)
    check: Check
    if origin is Annotated:
        rules = [each.keywords for each in args[1:] if isinstance(each, Rule)]
        check = _check_of(args[0], strict)
        if strict and rules:
            check = _all([check, *(partial(_keeps, rule=each) for each in rules)])
    elif origin is Union:
        check = _any([_check_of(each, strict) for each in args])
    elif origin is Literal:
        check = args.__contains__ if strict else _of_types(*map(type, args))
    elif origin is list or origin is dict or is_typeddict(shape):
        check = _check_of_parts(shape, strict=strict)
    elif shape is object:
        check = _all([])
    elif shape is str and strict:
        check = _is_text
    else:
        check = _of_types(int, float) if shape is float else _of_types(shape)
    return check


def _all(checks: Sequence[Check]) -> Check:
    return lambda value: all(each(value) for each in checks)


def _any(checks: Sequence[Check]) -> Check:
    return lambda value: any(each(value) for each in checks)


def _of_types(*kinds: type) -> Check:
    """Return the check that a value has exactly one of these types: a boolean is no number."""
    return lambda value: type(value) in kinds


def _check_of_parts(shape: Shape, *, strict: bool) -> Check:
    """Return the check of a list or an object; without ``strict``, of its parts, too."""
    origin, args = _made_of(shape)
    kind = list if origin is list else dict
    if strict:
        return lambda value: isinstance(value, kind)
    if origin is list:
        item = _check_of(args[0], strict)
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin is dict:
        item = _check_of(args[1], strict)
        return lambda value: isinstance(value, dict) and all(map(item, value.values()))
    fields = [
        (name, _check_of(part, strict), required)
        for name, (part, required) in fields_of(shape).items()
    ]

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, part, required in fields:
            if name in value:
                if not part(value[name]):
                    return False
            elif required:
                return False
        return True

    return check


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that UTF-8 can encode: it has no half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def problem(value: Mapping[str, object], shape: Shape) -> str | None:
    """Return why a field of an object that a server was sent has not the shape that a TypedDict gives it; None if all have."""
    for name, (kind, required) in fields_of(shape).items():
        if name not in value:
            if required:
                return f"{name}: is missing; it must be {said(kind)}."
        elif not fits(value[name], kind, strict=True):
            return f"{name}: must be {said(kind)}, not {_shown(value[name])}."
    return None


def _keeps(value: Any, rule: Mapping[str, Any]) -> bool:
    if "enum" in rule:
        return value in rule["enum"]
    if isinstance(value, list):
        return bool(rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)))
    return not isinstance(value, str) or len(value) >= rule.get("minLength", 0)


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    return "null" if value is None else f"{value!a:.80}"


def said(shape: Shape) -> str:
    """Return what an error calls a value of this shape."""
    origin, args = _made_of(shape)
    if origin is Annotated:
        told = [each.says for each in args[1:] if isinstance(each, Rule) and each.says]
        return told[-1] if told else said(args[0])
    if origin is Union:
        return " or ".join(dict.fromkeys(map(said, args)))
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin is list:
        return "a list"
    return _SAID.get(shape, "an object")
